"""ppo: updates of the policy and of the critic from one batch of rollouts.

The formulas are those of hybridengine.rlhf.algorithms, chosen by the config; here they meet the
model, micro-batch by micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from hybridengine.collective import collectives
from hybridengine.comm import Communicator
from hybridengine.rlhf.algorithms import (
    AllReduce,
    Counts,
    PolicyTerms,
    aggregation,
    kl_estimator,
    mean_and_var,
    over_kl_limit,
    policy_loss,
    value_loss,
    with_unbiased_gradient,
)
from hybridengine.rlhf.algorithms.masks import select
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.by_place import aggregation_of, estimator_of
from hybridengine.rlhf.config.schema import Algorithm, Config
from hybridengine.rlhf.training.optimizer import ShardedAdamW
from hybridengine.rlhf.training.passes import Passes
from hybridengine.rlhf.training.stepping import Stepper, Sums, reduction_over

# Keys of the config that are options of policy losses.
_BOUNDS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")


class PolicyUpdate:
    """PPO and its family on the ranks of `comm`, over which the model of `passes` is sharded."""

    def __init__(
        self,
        passes: Passes,
        optimizer: ShardedAdamW,
        config: Config,
        comm: Communicator | None = None,
    ) -> None:
        """Throws UsageError on a loss, an estimator or an aggregation that is not registered."""
        self._passes, self._algorithm, self._comm = passes, config.algorithm, comm
        self._epochs = config.actor.ppo_epochs
        self._stepper = Stepper(passes, optimizer, config.seed)
        self._loss = bound_policy_loss(config.algorithm)
        self._aggregate = aggregation.get(aggregation_of(config.algorithm))
        self._estimate_kl = kl_estimator.get(estimator_of(config.algorithm))
        self._kl_coef = 0.0

    def update(self, batch: Batch, *, kl_coef: float | None = None) -> dict[str, float]:
        """Trains on `batch`, and returns means over the trainable tokens of all ranks. Collective.

        Needs ids, mask, old_log_probs, advantages, and ref_log_probs for a KL in the loss; takes
        weights and mini_batch. `kl_coef`: instead of the config's, where a controller steers it.
        Besides what Stepper.run returns: policy_loss, kl and kl_k1 (from the policy that sampled to
        this one, k3 and k1), clip_share, entropy, and ratio_max_error, the largest |ratio - 1|
        before the first step, which is 0 if old_log_probs came from `passes` and the same batch.
        """
        in_loss = self._algorithm.kl.where == "loss"
        coefficient = self._algorithm.kl_coef if kl_coef is None else kl_coef
        self._kl_coef = coefficient if in_loss else 0.0
        names = ("ids", "mask", "old_log_probs", "advantages", "weights", "mini_batch")
        self._seen = _Seen()
        found = self._stepper.run(
            batch.keep(*names, *(["ref_log_probs"] if self._kl_coef else [])),
            self._epochs,
            self._loss_of,
            self._ends_early,
        )
        return found | self._seen.means(self._comm)

    def _loss_of(self, micro: Batch, counts: Counts) -> torch.Tensor:
        coef = self._algorithm.entropy_coef
        flat = self._passes.log_probs_and_entropy(micro, entropy_gradient=coef > 0)
        log_probs, spread = (micro.pad(each) for each in flat)
        mask, old, advantages = _padded(micro, log_probs, "mask", "old_log_probs", "advantages")
        terms = self._loss(log_probs, old, advantages, mask)
        losses = terms.losses
        if "weights" in micro:
            losses = losses * select(_padded(micro, log_probs, "weights")[0], mask)
        self._seen.micro_batch(terms, losses, log_probs, old, spread, mask)
        if self._kl_coef:
            losses = losses + self._kl_coef * self._kl(micro, log_probs, old, mask)
        if coef > 0:
            losses = losses - coef * select(spread, mask)
        return self._aggregate(losses, mask, counts)

    def _kl(
        self, micro: Batch, log_probs: torch.Tensor, old: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        reference = _padded(micro, log_probs, "ref_log_probs")[0]
        estimate = self._estimate_kl(log_probs, reference, mask)
        if not self._algorithm.kl.unbiased_gradient:
            return estimate
        return with_unbiased_gradient(estimate, log_probs, reference, mask, old_log_probs=old)

    def _ends_early(self) -> bool:
        """Whether the mini-batch just seen is further from the policy that sampled than allowed."""
        kl, mask = self._seen.end_of_mini_batch()
        limit = self._algorithm.kl.limit
        if limit is None:
            return False
        return over_kl_limit(kl, mask, limit=limit, all_reduce=reduction_over(self._comm))


class ValueUpdate:
    """The critic's part of PPO, on the ranks over which the model of `passes` is sharded."""

    def __init__(
        self,
        passes: Passes,
        optimizer: ShardedAdamW,
        config: Config,
        comm: Communicator | None = None,
    ) -> None:
        algorithm = config.algorithm
        options = value_loss.options(algorithm.value_loss)
        chosen = {"clip_range": algorithm.value_clip} if "clip_range" in options else {}
        self._loss = value_loss.bind(algorithm.value_loss, **chosen)
        self._epochs = config.critic.ppo_epochs
        self._passes, self._comm = passes, comm
        self._stepper = Stepper(passes, optimizer)
        self._aggregate = aggregation.get("token-mean")

    def update(self, batch: Batch) -> dict[str, float]:
        """Trains on `batch`: ids, mask, values (before the update), returns, and mini_batch if it
        has one. Collective.

        Besides what Stepper.run returns: value_loss and clip_share, over all trainable tokens, and
        explained_variance, 1 - var(returns - values) / var(returns); NaN where returns are equal.
        """
        self._sums = Sums()
        explained = _explained_variance(batch, reduction_over(self._comm))
        kept = batch.keep("ids", "mask", "values", "returns", "mini_batch")
        found = self._stepper.run(kept, self._epochs, self._loss_of)
        names = ("value_loss", "clip_share", "seen")
        means = _means(self._sums.over_ranks(names, reduction_over(self._comm)))
        return found | means | {"explained_variance": explained}

    def _loss_of(self, micro: Batch, counts: Counts) -> torch.Tensor:
        values = micro.pad(self._passes.values_of(micro))
        old, returns, mask = _padded(micro, values, "values", "returns", "mask")
        terms = self._loss(values, old, returns, mask)
        self._sums.add(
            value_loss=terms.losses.sum(), clip_share=terms.clipped.sum(), seen=mask.sum()
        )
        return self._aggregate(terms.losses, mask, counts)


def _explained_variance(batch: Batch, all_reduce: AllReduce | None) -> float:
    """Of the returns by the values before the update, over the trainable tokens of all ranks."""
    mask, returns = batch["mask"][None], batch["returns"][None].double()
    left = mean_and_var(returns - batch["values"][None], mask, all_reduce=all_reduce).var
    whole = mean_and_var(returns, mask, all_reduce=all_reduce).var
    return float(1 - left / whole) if whole > 0 else math.nan


def bound_policy_loss(algorithm: Algorithm) -> Callable[..., PolicyTerms]:
    """The loss that the config names, with those of the config's options that it takes."""
    known = policy_loss.options(algorithm.policy_loss)
    bounds: dict[str, float | None] = {name: getattr(algorithm, name) for name in _BOUNDS}
    chosen = {name: bounds[name] for name in known if bounds.get(name) is not None}
    return policy_loss.bind(algorithm.policy_loss, **chosen)


class _Seen:
    """What one update of the policy saw of its tokens."""

    _NAMES = ("policy_loss", "kl", "kl_k1", "clip_share", "entropy", "seen")

    def __init__(self) -> None:
        self._sums = Sums()
        self._kl: list[torch.Tensor] = []  # of the mini-batch that runs, at trainable tokens
        self._stepped = False
        self._ratio_error = torch.zeros(1, dtype=torch.float64)

    @torch.no_grad()
    def micro_batch(
        self,
        terms: PolicyTerms,
        losses: torch.Tensor,
        log_probs: torch.Tensor,
        old: torch.Tensor,
        spread: torch.Tensor,
        mask: torch.Tensor,
    ) -> None:
        kl = kl_estimator.get("k3")(old, log_probs, mask)
        self._sums.add(
            policy_loss=losses.sum(),
            kl=kl.sum(),
            kl_k1=kl_estimator.get("k1")(old, log_probs, mask).sum(),
            clip_share=terms.clipped.sum(),
            entropy=select(spread, mask).sum(),
            seen=mask.sum(),
        )
        self._kl.append(kl[mask])
        if not self._stepped and mask.any():
            error = (select(terms.ratio, mask) - mask.to(terms.ratio)).abs().max()
            self._ratio_error = torch.maximum(self._ratio_error, error[None].double().cpu())

    def end_of_mini_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """KL and mask, both [1, trainable tokens of this rank], of the mini-batch that ends."""
        kl = torch.cat(self._kl)[None].cpu()
        self._kl, self._stepped = [], True
        return kl, torch.ones_like(kl, dtype=torch.bool)

    def means(self, comm: Communicator | None) -> dict[str, float]:
        if comm is not None:
            collectives.all_reduce(self._ratio_error, "max", comm=comm)
        means = _means(self._sums.over_ranks(self._NAMES, reduction_over(comm)))
        return means | {"ratio_max_error": float(self._ratio_error)}


def _means(sums: dict[str, float]) -> dict[str, float]:
    """Divided by their sum `seen`, which is left out."""
    seen = max(1.0, sums["seen"])
    return {name: value / seen for name, value in sums.items() if name != "seen"}


def _padded(micro: Batch, like: torch.Tensor, *names: str) -> list[torch.Tensor]:
    """Columns of tokens as [B, T], where `like` is."""
    return [micro.pad(micro[name]).to(like.device) for name in names]
