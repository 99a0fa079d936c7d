"""stepping: mini-batches into optimizer steps, and means of what was seen on the way.

Losses are parts of a sum: of all micro-batches on all ranks. FSDP2 takes the mean of gradients over
ranks, so each loss is multiplied by their number. What a loss is comes from the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from hybridengine.collective import collectives
from hybridengine.comm import Communicator
from hybridengine.rlhf.algorithms import AllReduce, Counts, global_counts, over_kl_limit, sum_over
from hybridengine.rlhf.algorithms.moments import reduced
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.training.backend import Objective, Terms
from hybridengine.rlhf.training.flops import UpdateCost
from hybridengine.rlhf.training.lora import adapter_dropout
from hybridengine.rlhf.training.optimizer import ShardedAdamW
from hybridengine.rlhf.training.passes import Passes
from hybridengine.rlhf.training.sharding import set_gradient_sync


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


class Seen:
    """What an update saw of its micro-batches, by the metrics of `loss`."""

    def __init__(self, loss: Objective) -> None:
        self._objective, self._sums = loss, Sums()
        self._largest = torch.zeros(len(loss.maxima), dtype=torch.float64)
        self._kl = list[torch.Tensor]()  # of the mini-batch that runs
        self._stepped = False

    def noted(self, terms: Terms, counted: torch.Tensor) -> torch.Tensor:
        """The loss of `terms`, of a micro-batch with `counted` trainable tokens."""
        self._sums.add(seen=counted, **terms.sums)
        if terms.kl is not None and self._objective.kl_limit is not None:
            self._kl.append(terms.kl)
        if not self._stepped and terms.largest:
            found = [terms.largest[name].double().cpu() for name in self._objective.maxima]
            self._largest = torch.maximum(self._largest, torch.stack(found))
        return terms.loss

    def ends_the_update(self, all_reduce: AllReduce | None) -> bool:
        """Whether the mini-batch that ended is further from the policy that sampled than allowed.
        Collective with a limit."""
        self._stepped, limit = True, self._objective.kl_limit
        if limit is None:
            return False
        kl, self._kl = torch.cat(self._kl)[None].cpu(), []
        return over_kl_limit(kl, torch.ones_like(kl).bool(), limit=limit, all_reduce=all_reduce)

    def add(self, **sums: float) -> None:
        """The loss of a mini-batch on this rank, and what it took."""
        self._sums.add(**sums)

    def over_ranks(self, comm: Communicator | None) -> dict[str, float]:
        """The sums of what was added, and the metrics of the loss. Collective."""
        added, means = ("loss", "flops", "processed"), self._objective.means
        sums = self._sums.over_ranks((*added, "seen", *means), reduction_over(comm))
        if comm is not None and len(self._largest):
            collectives.all_reduce(self._largest, "max", comm=comm)
        seen = max(1.0, sums["seen"])
        return {
            **{name: sums[name] for name in added},
            **{name: sums[name] / seen for name in means},
            **dict(zip(self._objective.maxima, self._largest.tolist(), strict=True)),
        }


class Stepper:
    """Runs one batch as epochs of mini-batches, one optimizer step each.

    All ranks run the same mini-batches, also those that have no rows of one.
    """

    def __init__(self, passes: Passes, optimizer: ShardedAdamW, seed: int = 0) -> None:
        """`seed`: of the dropout before adapters, where there are any."""
        self.passes, self.optimizer, self._seed = passes, optimizer, seed
        self.all_reduce = reduction_over(passes.comm)
        self._cost = UpdateCost.of(passes.module)

    def run(self, batch: Batch, loss: Objective, epochs: int = 1) -> dict[str, float]:
        """Trains on `batch` (ids, mask, mini_batch if there are several, and the columns of the
        loss) and returns loss, grad_norm, lr, tokens, updates, skipped, stopped, micro_batches,
        flops (of the model) and processed (tokens of rows, over all passes), and the metrics of
        `loss`, the same on every rank. Collective.

        Where the mean KL of a mini-batch is above the limit of the loss, on all ranks alike, its
        gradient is dropped and the rest left out.
        """
        plan = self._plan(batch.keep("ids", "mask", "mini_batch", *loss.columns))
        seen = Seen(loss)
        norms, lr, stopped = list[float](), 0.0, False
        updates, skipped = self.optimizer.updates, self.optimizer.skipped
        num_losses = num_micros = 0
        for micros, counts in plan * epochs:

            def part(micro: Batch, counts: Counts = counts) -> torch.Tensor:
                return seen.noted(self._terms(loss, micro, counts), counted=micro["mask"].sum())

            with adapter_dropout(self.passes.module, self._dropout_seed()):
                total = accumulate_gradients(self.passes, micros, part, self.optimizer)
            seen.add(loss=total, **self._work(micros))
            num_losses, num_micros = num_losses + 1, num_micros + len(micros)
            if stopped := seen.ends_the_update(self.all_reduce):
                self.optimizer.zero_grad()
                break
            lr = self.optimizer.lr
            norms.append(self.optimizer.step(self.optimizer.options.grad_clip))
        finite = [norm for norm in norms if math.isfinite(norm)]
        sums = seen.over_ranks(self.passes.comm)
        return {
            **sums,
            "loss": sums["loss"] / max(1, num_losses),
            "grad_norm": sum(finite) / max(1, len(finite)),
            "lr": lr,
            "tokens": float(sum(counts.tokens for _, counts in plan)),
            "updates": float(self.optimizer.updates - updates),
            "skipped": float(self.optimizer.skipped - skipped),
            "stopped": float(stopped),
            "micro_batches": float(num_micros),
        }

    def _work(self, micros: Sequence[Batch]) -> dict[str, float]:
        """Of a pass over these rows, forward and backward."""
        masks = [int(micro["mask"].sum()) for micro in micros]
        pairs = zip(micros, masks, strict=True)
        return {
            "flops": sum(self._cost.flops(micro.lengths, count) for micro, count in pairs),
            "processed": float(sum(int(micro.lengths.sum()) for micro in micros)),
        }

    def _terms(self, loss: Objective, micro: Batch, counts: Counts) -> Terms:
        """What `loss` makes of the model's outputs for a micro-batch."""
        if loss.head == "value":
            return loss(micro.pad(self.passes.values_of(micro)), micro, counts)
        flat = self.passes.log_probs_and_entropy(micro, loss.entropy)
        log_probs, entropy = (micro.pad(each) for each in flat)
        return loss(log_probs, entropy, micro, counts)

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
