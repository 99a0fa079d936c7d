"""supervised: updates without rewards: next tokens of given texts, and preferences among two."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from hybridengine._core import UsageError
from hybridengine.comm import Communicator
from hybridengine.rlhf.algorithms import Counts, aggregation
from hybridengine.rlhf.algorithms.moments import reduced
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.training.backend import Terms
from hybridengine.rlhf.training.forward import Spread
from hybridengine.rlhf.training.optimizer import ShardedAdamW
from hybridengine.rlhf.training.passes import Passes
from hybridengine.rlhf.training.sharding import free_whole_weights
from hybridengine.rlhf.training.stepping import Sums, accumulate_gradients, reduction_over


class NextTokenLoss:
    """Cross entropy of the tokens in the mask, each weighing the same over all ranks."""

    head: Literal["policy"] = "policy"
    entropy: Spread = "none"
    columns: tuple[str, ...] = ()
    means: tuple[str, ...] = ()
    maxima: tuple[str, ...] = ()
    kl_limit: float | None = None

    def __call__(
        self, log_probs: torch.Tensor, entropy: torch.Tensor, micro: Batch, counts: Counts
    ) -> Terms:
        mask = micro.padded("mask").to(log_probs.device)
        return Terms(aggregation.get("token-mean")(-log_probs, mask, counts))


class PairUpdate:
    """A classifier that scores the better of two answers higher (Bradley and Terry 1952):
    -log sigmoid(score of chosen - score of rejected), the mean over the pairs of all ranks."""

    def __init__(
        self, passes: Passes, optimizer: ShardedAdamW, comm: Communicator | None = None
    ) -> None:
        self._passes, self._optimizer, self._comm = passes, optimizer, comm

    def update(self, chosen: Batch, rejected: Batch) -> dict[str, float]:
        """One step. Row i of `chosen` and of `rejected` (ids) make a pair. Collective.

        Returns loss, accuracy (share of pairs in the right order, ties as half), grad_norm, lr,
        skipped, micro_batches and pairs, the same on every rank. Throws UsageError unless both have
        equally many rows.
        """
        micros = self._split(chosen, rejected)
        all_reduce = reduction_over(self._comm)
        pairs = float(reduced(torch.tensor([float(len(chosen))]).double(), all_reduce))
        sums = Sums()
        loss = accumulate_gradients(
            self._passes,
            micros,
            lambda micro: self._losses(micro, sums).sum() / max(1.0, pairs),
            self._optimizer,
        )
        sums.add(loss=loss)
        lr, skipped = self._optimizer.lr, self._optimizer.skipped
        norm = self._optimizer.step(self._optimizer.options.grad_clip)
        found = sums.over_ranks(("loss", "right"), all_reduce)
        return {
            "loss": found["loss"],
            "accuracy": found["right"] / max(1.0, pairs),
            "grad_norm": norm,
            "lr": lr,
            "skipped": float(self._optimizer.skipped - skipped),
            "micro_batches": float(len(micros)),
            "pairs": pairs,
        }

    @torch.no_grad()
    def evaluate(self, chosen: Batch, rejected: Batch) -> dict[str, float]:
        """loss, accuracy and pairs without a step. Collective."""
        sums = Sums()
        for micro in self._split(chosen, rejected):
            sums.add(loss=self._losses(micro, sums).sum(), pairs=len(micro) // 2)
        free_whole_weights(self._passes.module)
        found = sums.over_ranks(("loss", "right", "pairs"), reduction_over(self._comm))
        pairs = max(1.0, found["pairs"])
        return {
            "loss": found["loss"] / pairs,
            "accuracy": found["right"] / pairs,
            "pairs": found["pairs"],
        }

    def _losses(self, micro: Batch, sums: Sums) -> torch.Tensor:
        """[pairs]; the first half of the rows was chosen. Adds to `right`."""
        scores, half = self._passes.scores_of(micro), len(micro) // 2
        margin = scores[:half] - scores[half:]
        sums.add(right=((margin.sign() + 1) / 2).sum())
        return -F.logsigmoid(margin)

    def _split(self, chosen: Batch, rejected: Batch) -> list[Batch]:
        """Micro-batches that keep pairs together, equally many on all ranks."""
        if len(chosen) != len(rejected):
            raise UsageError(
                f"{len(chosen)} chosen and {len(rejected)} rejected rows make no pairs. Pass one "
                "of each for every pair."
            )
        passes, both = self._passes, torch.stack([chosen.lengths, rejected.lengths])
        # Of a pair packed, and of one padded: what it adds to a micro-batch at the most.
        lengths = (both.sum(0) if passes.packed else 2 * both.amax(0)).tolist()
        least = passes.most_over_ranks(max(1, len(passes.micro_batches(lengths))))
        sides = (chosen.keep("ids"), rejected.keep("ids"))
        return [
            Batch.concat([side.select(part) for side in sides])
            for part in passes.micro_batches(lengths, least)
        ]
