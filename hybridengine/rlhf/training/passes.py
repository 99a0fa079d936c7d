"""passes: log-probs, values and scores of batches, with and without gradient.

A *mini-batch* is what one optimizer step sees, on all ranks; a *micro-batch* what one forward pass
of one rank holds. All ranks run the same number of micro-batches, for each pass gathers shards from
all of them; one without rows of its own runs a token that counts for nothing. What is known of the
token at t comes from the output at t - 1 and stands at t.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hybridengine._core import UsageError
from hybridengine.collective import collectives
from hybridengine.comm import Communicator
from hybridengine.rlhf.balance import micro_batches
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.roles import Sharding
from hybridengine.rlhf.training import forward
from hybridengine.rlhf.training.attention import can_pack, use_packed_attention
from hybridengine.rlhf.training.models import section_of, weight_dtype
from hybridengine.rlhf.training.sharding import free_whole_weights

_PLACE = "place"  # column: where a token or row of a micro-batch is in the whole batch


class Passes:
    """The forward passes of one model on this rank. Batches lie in host memory, and so do results
    without gradient; results with gradient lie where the model computes."""

    def __init__(
        self,
        module: nn.Module,
        sharding: Sharding,
        temperature: float = 1.0,
        *,
        comm: Communicator | None = None,
    ) -> None:
        """`comm`: the ranks over which `module` is sharded; None: this one alone."""
        self.module, self.sharding = module, sharding
        self.temperature, self.comm = temperature, comm
        self.packed = sharding.sequence_packing and can_pack(module)
        if self.packed:
            use_packed_attention(module, self.device, getattr(torch, sharding.dtype))
        forward.add_forward_method(module)

    @property
    def world(self) -> int:
        return 1 if self.comm is None else self.comm.world

    @property
    def device(self) -> torch.device:
        return forward.device_of(self.module)

    def split(self, batch: Batch) -> list[list[Batch]]:
        """By number of the mini-batch, its micro-batches on this rank. Collective.

        Equal numbers on all ranks. The column `mini_batch` tells which rows go together; without it
        all do. It is part of the split in passes without gradient too: a row's numbers depend, in
        the last bits, on the rows it is packed with. Throws UsageError, on all ranks, on a row that
        is longer than `max_tokens_per_gpu`.
        """
        numbers = batch.rows.get("mini_batch", torch.zeros(len(batch), dtype=torch.int64))
        longest = int(batch.lengths.max()) if len(batch) else 0
        count, longest = self._most([int(numbers.max()) + 1 if len(batch) else 1, longest])
        budget = self.sharding.max_tokens_per_gpu
        if longest > budget:  # on all ranks, or the others would wait for this one
            section = section_of(self.sharding)
            raise UsageError(
                f"a row has {longest} tokens: {section}max_tokens_per_gpu={budget}. Raise "
                f"{section}max_tokens_per_gpu, or lower data.max_response_length."
            )
        groups = [torch.nonzero(numbers == number)[:, 0] for number in range(count)]
        lengths = [batch.lengths[group].tolist() for group in groups]
        least = self._most([len(self.micro_batches(each)) for each in lengths])
        return [
            [batch.select(group[part]) for part in self.micro_batches(each, max(1, least[number]))]
            for number, (group, each) in enumerate(zip(groups, lengths, strict=True))
        ]

    def micro_batches(self, lengths: list[int], least: int = 1) -> list[list[int]]:
        """Rows of these lengths cut by the budget, into `least` micro-batches or more."""
        budget = self.sharding.max_tokens_per_gpu
        return micro_batches(lengths, budget, min_batches=least, padded=not self.packed)

    @torch.no_grad()
    def log_probs(self, batch: Batch) -> torch.Tensor:
        """[N]: after temperature, 0 where the mask is false. Needs ids and mask. Collective."""
        out = torch.zeros(int(batch.lengths.sum()), dtype=self._result_type())
        for micro, places in self._micro_batches(batch):
            out[places] = self.log_probs_of(micro).to(out)
        return out

    @torch.no_grad()
    def values(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """([N], [B]): the value before each token, and behind the last one of a row. Collective.

        The first token of a row has no value before it: 0. Needs ids.
        """
        values = torch.zeros(int(batch.lengths.sum()), dtype=self._result_type())
        last_values = torch.zeros(len(batch), dtype=self._result_type())
        for micro, places in self._micro_batches(batch):
            heads = self._heads(micro)
            values[places] = _one_later(heads, micro).to(values)
            last_values[micro.rows[_PLACE]] = heads[micro.last_tokens()].to(values)
        return values, last_values

    @torch.no_grad()
    def scores(self, batch: Batch) -> torch.Tensor:
        """[B]: what a classifier's head says at the last token of a row. Collective."""
        out = torch.zeros(len(batch), dtype=self._result_type())
        for micro, _ in self._micro_batches(batch):
            out[micro.rows[_PLACE]] = self.scores_of(micro).to(out)
        return out

    def log_probs_and_entropy(
        self, micro: Batch, entropy: forward.Spread = "value"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both [N], of one micro-batch, with gradient; 0 where the mask is false. Collective.

        The entropy has a gradient, or is 0 and costs nothing, as `entropy` says.
        """
        log_probs, spread = self._run(forward.policy_outputs, micro, self.temperature, entropy)
        return log_probs, spread

    def log_probs_of(self, micro: Batch) -> torch.Tensor:
        """The first of `log_probs_and_entropy`, equal to it, without the cost of the second."""
        return self._run(forward.policy_outputs, micro, self.temperature, "none")[0]

    def values_of(self, micro: Batch) -> torch.Tensor:
        """[N]: the values of one micro-batch, with gradient. Collective."""
        return _one_later(self._heads(micro), micro)

    def scores_of(self, micro: Batch) -> torch.Tensor:
        """[B]: the scores of one micro-batch, with gradient. Collective."""
        return self._heads(micro)[micro.last_tokens().to(self.device)]

    def most_over_ranks(self, number: int) -> int:
        """The largest of the numbers that the ranks pass. Collective."""
        return self._most([number])[0]

    def _heads(self, micro: Batch) -> torch.Tensor:
        return self._run(forward.head_outputs, micro)[0]

    def _run(self, function: Any, micro: Batch, *args: Any) -> list[torch.Tensor]:
        """The tensors that `function` returns, each [N]; empty, but with a gradient, where the
        micro-batch is."""
        module: Any = self.module
        outputs = module.within_forward(
            function, micro if len(micro) else _IDLE, self.packed, *args
        )
        tensors = outputs if isinstance(outputs, tuple) else (outputs,)
        return list(tensors) if len(micro) else [tensor[:0] for tensor in tensors]

    def _micro_batches(self, batch: Batch) -> Iterator[tuple[Batch, torch.Tensor]]:
        """All micro-batches of `split`, with where their tokens are in `batch`; frees weights that
        were gathered when done."""
        tokens, rows = torch.arange(int(batch.lengths.sum())), torch.arange(len(batch))
        kept = batch.keep("ids", "mask", "mini_batch")
        placed = kept.with_tokens(**{_PLACE: tokens}).with_rows(**{_PLACE: rows})
        for micros in self.split(placed):
            for micro in micros:
                yield micro, micro.tokens[_PLACE]
        free_whole_weights(self.module)

    def _most(self, numbers: list[int]) -> list[int]:
        most = torch.tensor(numbers, dtype=torch.int64)
        if self.comm is not None:
            collectives.all_reduce(most, "max", comm=self.comm)
        return [int(number) for number in most]

    def _result_type(self) -> torch.dtype:
        return weight_dtype(self.sharding)


def _one_later(heads: torch.Tensor, batch: Batch) -> torch.Tensor:
    """[N]: at each token the output before it; 0 at the first token of a row."""
    shifted = F.pad(heads, (1, 0))[:-1]
    return shifted.index_fill(0, batch.first_tokens().to(heads.device), 0)


# What a rank without rows runs, so that all ranks gather shards as often.
_IDLE = Batch(
    torch.ones(1, dtype=torch.int64),
    {"ids": torch.zeros(1, dtype=torch.int64), "mask": torch.zeros(1, dtype=torch.bool)},
)
