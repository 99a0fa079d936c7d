"""stepping: mini-batches into optimizer steps, and means of what was seen on the way.

Losses are parts of a sum: of all micro-batches on all ranks. FSDP2 takes the mean of gradients over
ranks, so each loss is multiplied by their number. What a loss is comes from the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from hybridengine.comm import Communicator
from hybridengine.rlhf.algorithms import AllReduce, Counts, global_counts, sum_over
from hybridengine.rlhf.algorithms.moments import reduced
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.training.flops import UpdateCost
from hybridengine.rlhf.training.lora import adapter_dropout
from hybridengine.rlhf.training.optimizer import ShardedAdamW
from hybridengine.rlhf.training.passes import Passes
from hybridengine.rlhf.training.sharding import set_gradient_sync

LossOf = Callable[[Batch, Counts], torch.Tensor]


def reduction_over(comm: Communicator | None) -> AllReduce | None:
    """The sum over the ranks of `comm`; None where this rank is alone."""
    return None if comm is None else sum_over(comm)


def accumulate_gradients(
    passes: Passes,
    micros: Sequence[Batch],
    loss_of: Callable[[Batch], torch.Tensor],
    optimizer: ShardedAdamW,
) -> float:
    """Runs every micro-batch and leaves the gradient of the sum of their losses where `optimizer`
    steps.

    Returns that sum on this rank. Gradients are reduced every `sync_every` micro-batches, the last
    ones always. Collective.
    """
    total = 0.0
    for index, micro in enumerate(micros):
        last = index + 1 == len(micros)
        set_gradient_sync(passes.module, last or (index + 1) % passes.sharding.sync_every == 0)
        loss = loss_of(micro)
        (loss * passes.world).backward()  # type: ignore[no-untyped-call]
        optimizer.masters.take_gradients()
        total += float(loss.detach())
    return total


class Sums:
    """Sums by name over micro-batches, then over ranks."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, **sums: torch.Tensor | float) -> None:
        for name, value in sums.items():
            wide = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
            self._sums[name] = self._sums.get(name, torch.zeros_like(wide)) + wide

    def over_ranks(self, names: Sequence[str], all_reduce: AllReduce | None) -> dict[str, float]:
        """The sums of `names` over all ranks; 0 for what was never added. Collective."""
        zero = torch.zeros((), dtype=torch.float64)
        mine = torch.stack([self._sums.get(name, zero) for name in names])
        return dict(zip(names, reduced(mine, all_reduce).tolist(), strict=True))


class Stepper:
    """Runs one batch as epochs of mini-batches, one optimizer step each.

    All ranks run the same mini-batches, also those that have no rows of one.
    """

    def __init__(self, passes: Passes, optimizer: ShardedAdamW, seed: int = 0) -> None:
        """`seed`: of the dropout before adapters, where there are any."""
        self.passes, self.optimizer, self._seed = passes, optimizer, seed
        self.all_reduce = reduction_over(passes.comm)
        self._cost = UpdateCost.of(passes.module)

    def run(
        self,
        batch: Batch,
        epochs: int,
        loss_of: LossOf,
        stop_before_step: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        """Trains on `batch` and returns loss, grad_norm, lr, tokens, updates, skipped, stopped,
        micro_batches, flops (of the model) and processed (tokens of rows, over all passes), the
        same on every rank. Collective.

        `loss_of(micro, counts)` gives a micro-batch's part of the loss of its mini-batch, which has
        `counts`. `stop_before_step` is asked after each mini-batch; if it says yes, on all ranks,
        the gradient is dropped and the rest left out.
        """
        plan = self._plan(batch)
        losses, norms, lr, stopped = Sums(), [], 0.0, False
        updates, skipped = self.optimizer.updates, self.optimizer.skipped
        num_losses = num_micros = 0
        for micros, counts in plan * epochs:

            def part(micro: Batch, counts: Counts = counts) -> torch.Tensor:
                return loss_of(micro, counts)

            with adapter_dropout(self.passes.module, self._dropout_seed()):
                losses.add(loss=accumulate_gradients(self.passes, micros, part, self.optimizer))
            losses.add(**self._work(micros))
            num_losses, num_micros = num_losses + 1, num_micros + len(micros)
            if stopped := stop_before_step():
                self.optimizer.zero_grad()
                break
            lr = self.optimizer.lr
            norms.append(self.optimizer.step(self.optimizer.options.grad_clip))
        finite = [norm for norm in norms if math.isfinite(norm)]
        total = losses.over_ranks(["loss", "flops", "processed"], self.all_reduce)
        return {
            "loss": total["loss"] / max(1, num_losses),
            "grad_norm": sum(finite) / max(1, len(finite)),
            "lr": lr,
            "tokens": float(sum(counts.tokens for _, counts in plan)),
            "updates": float(self.optimizer.updates - updates),
            "skipped": float(self.optimizer.skipped - skipped),
            "stopped": float(stopped),
            "micro_batches": float(num_micros),
            "flops": total["flops"],
            "processed": total["processed"],
        }

    def _work(self, micros: Sequence[Batch]) -> dict[str, float]:
        """Of a pass over these rows, forward and backward."""
        masks = [int(micro["mask"].sum()) for micro in micros]
        pairs = zip(micros, masks, strict=True)
        return {
            "flops": sum(self._cost.flops(micro.lengths, count) for micro, count in pairs),
            "processed": float(sum(int(micro.lengths.sum()) for micro in micros)),
        }

    def _dropout_seed(self) -> tuple[int, int, int]:
        """Another for every optimizer step, of which a checkpoint knows how many there were."""
        steps = self.optimizer.updates + self.optimizer.skipped
        return self._seed, steps, 0 if self.passes.comm is None else self.passes.comm.rank

    def _plan(self, batch: Batch) -> list[tuple[list[Batch], Counts]]:
        """Every mini-batch that has trainable tokens on any rank."""
        plan = []
        for micros in self.passes.split(batch):
            masks = [micro.padded("mask") for micro in micros]
            counts = global_counts(masks, all_reduce=self.all_reduce)
            if counts.tokens:
                plan.append((micros, counts))
        return plan
