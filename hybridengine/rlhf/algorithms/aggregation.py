"""aggregation: from losses per token to the loss that is differentiated.

Every form divides by *global* counts: those of the whole update, over all its micro-batches and
ranks. The loss of the update is then the plain sum of what its micro-batches on all ranks return,
and its gradient the sum of their gradients, however the batch was cut. A gradient reduction that
takes the mean over ranks must be undone by a factor of the world size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.algorithms.masks import check_shapes, row_mean, select
from hybridengine.rlhf.algorithms.moments import AllReduce, reduced
from hybridengine.rlhf.registry import Registry

aggregation: Registry[torch.Tensor] = Registry("loss aggregation")


@dataclass(frozen=True)
class Counts:
    """What an update holds over all micro-batches and ranks.

    `tokens`: trainable tokens. `sequences`: rows with at least one of them, so that rows which only
    pad a batch change nothing.
    """

    tokens: int
    sequences: int

    def __post_init__(self) -> None:
        if not 0 <= self.sequences <= self.tokens:
            raise UsageError(
                f"counts contradict each other: {self.tokens} tokens in {self.sequences} "
                "sequences. Count trainable tokens, and rows that have any."
            )


def global_counts(
    masks: torch.Tensor | Iterable[torch.Tensor], *, all_reduce: AllReduce | None = None
) -> Counts:
    """Counts over `masks` (bool [B, T], one, or all micro-batches of this rank) and all ranks.

    Collective if `all_reduce` is given.
    """
    masks = [masks] if isinstance(masks, torch.Tensor) else list(masks)
    local = torch.zeros(2, dtype=torch.float64, device=masks[0].device if masks else None)
    for mask in masks:
        check_shapes(mask)
        local += torch.stack([mask.sum(), mask.any(1).sum()])
    tokens, sequences = reduced(local, all_reduce).tolist()
    return Counts(int(tokens), int(sequences))


@aggregation("token-mean")
def token_mean(losses: torch.Tensor, mask: torch.Tensor, counts: Counts) -> torch.Tensor:
    """Every trainable token of the update weighs the same. [B, T] to a tensor without dims."""
    check_shapes(mask, losses=losses)
    return select(losses, mask).sum() / max(counts.tokens, 1)


@aggregation("seq-mean-token-sum")
def seq_mean_token_sum(losses: torch.Tensor, mask: torch.Tensor, counts: Counts) -> torch.Tensor:
    """The sum over the tokens of a sequence, then the mean over the sequences of the update."""
    check_shapes(mask, losses=losses)
    return select(losses, mask).sum() / max(counts.sequences, 1)


@aggregation("seq-mean-token-mean")
def seq_mean_token_mean(losses: torch.Tensor, mask: torch.Tensor, counts: Counts) -> torch.Tensor:
    """The mean over the tokens of a sequence, then the mean over the sequences of the update."""
    check_shapes(mask, losses=losses)
    return row_mean(losses, mask).sum() / max(counts.sequences, 1)
