"""ppo: the losses of policy and critic in PPO and its family, as values.

The formulas are those of hybridengine.rlhf.algorithms, chosen by the config; here they meet the
columns of a batch. What runs them is a backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from hybridengine.rlhf.algorithms import (
    Counts,
    PolicyTerms,
    aggregation,
    kl_estimator,
    policy_loss,
    value_loss,
    with_unbiased_gradient,
)
from hybridengine.rlhf.algorithms.masks import select
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.by_place import aggregation_of, estimator_of
from hybridengine.rlhf.config.schema import Algorithm
from hybridengine.rlhf.training.backend import Terms
from hybridengine.rlhf.training.forward import Spread

# Keys of the config that are options of policy losses.
_BOUNDS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")


class PolicyLoss:
    """Needs the columns old_log_probs and advantages, and ref_log_probs for a KL in the loss; takes
    weights.

    Its metrics: policy_loss, kl and kl_k1 (from the policy that sampled to this one, k3 and k1),
    clip_share, entropy, and ratio_max_error, the largest |ratio - 1| before the first step, which
    is 0 if old_log_probs came from the same model and the same batch.
    """

    head: Literal["policy"] = "policy"
    means: tuple[str, ...] = ("policy_loss", "kl", "kl_k1", "clip_share", "entropy")
    maxima: tuple[str, ...] = ("ratio_max_error",)

    def __init__(self, algorithm: Algorithm, kl_coef: float | None = None) -> None:
        """`kl_coef`: instead of the config's, where a controller steers it. Throws UsageError on a
        loss, an estimator or an aggregation that is not registered."""
        coefficient = algorithm.kl_coef if kl_coef is None else kl_coef
        self.kl_coef = coefficient if algorithm.kl.where == "loss" else 0.0
        self.kl_limit = algorithm.kl.limit
        self.entropy: Spread = "gradient" if algorithm.entropy_coef > 0 else "value"
        reference = ("ref_log_probs",) if self.kl_coef else ()
        self.columns: tuple[str, ...] = ("old_log_probs", "advantages", "weights", *reference)
        self._algorithm = algorithm
        self._loss = bound_policy_loss(algorithm)
        self._aggregate = aggregation.get(aggregation_of(algorithm))
        self._estimate_kl = kl_estimator.get(estimator_of(algorithm))

    def __call__(
        self, log_probs: torch.Tensor, entropy: torch.Tensor, micro: Batch, counts: Counts
    ) -> Terms:
        mask, old, advantages = _padded(micro, log_probs, "mask", "old_log_probs", "advantages")
        terms = self._loss(log_probs, old, advantages, mask)
        losses = terms.losses
        if "weights" in micro:
            losses = losses * select(_padded(micro, log_probs, "weights")[0], mask)
        kl = kl_estimator.get("k3")(old, log_probs.detach(), mask)
        sums = {
            "policy_loss": losses.detach().sum(),
            "kl": kl.sum(),
            "kl_k1": kl_estimator.get("k1")(old, log_probs.detach(), mask).sum(),
            "clip_share": terms.clipped.sum(),
            "entropy": select(entropy.detach(), mask).sum(),
        }
        if self.kl_coef:
            losses = losses + self.kl_coef * self._kl(micro, log_probs, old, mask)
        if self._algorithm.entropy_coef > 0:
            losses = losses - self._algorithm.entropy_coef * select(entropy, mask)
        largest = {"ratio_max_error": _ratio_error(terms, mask)}
        return Terms(self._aggregate(losses, mask, counts), sums, largest, kl[mask])

    def _kl(
        self, micro: Batch, log_probs: torch.Tensor, old: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        reference = _padded(micro, log_probs, "ref_log_probs")[0]
        estimate = self._estimate_kl(log_probs, reference, mask)
        if not self._algorithm.kl.unbiased_gradient:
            return estimate
        return with_unbiased_gradient(estimate, log_probs, reference, mask, old_log_probs=old)


class ValueLoss:
    """Needs the columns values (before the update) and returns. Its metrics: value_loss and
    clip_share."""

    head: Literal["value"] = "value"
    columns: tuple[str, ...] = ("values", "returns")
    means: tuple[str, ...] = ("value_loss", "clip_share")
    maxima: tuple[str, ...] = ()
    kl_limit: float | None = None

    def __init__(self, algorithm: Algorithm) -> None:
        options = value_loss.options(algorithm.value_loss)
        chosen = {"clip_range": algorithm.value_clip} if "clip_range" in options else {}
        self._loss = value_loss.bind(algorithm.value_loss, **chosen)
        self._aggregate = aggregation.get("token-mean")

    def __call__(self, values: torch.Tensor, micro: Batch, counts: Counts) -> Terms:
        old, returns, mask = _padded(micro, values, "values", "returns", "mask")
        terms = self._loss(values, old, returns, mask)
        sums = {"value_loss": terms.losses.detach().sum(), "clip_share": terms.clipped.sum()}
        return Terms(self._aggregate(terms.losses, mask, counts), sums)


def bound_policy_loss(algorithm: Algorithm) -> Callable[..., PolicyTerms]:
    """The loss that the config names, with those of the config's options that it takes."""
    known = policy_loss.options(algorithm.policy_loss)
    bounds: dict[str, float | None] = {name: getattr(algorithm, name) for name in _BOUNDS}
    chosen = {name: bounds[name] for name in known if bounds.get(name) is not None}
    return policy_loss.bind(algorithm.policy_loss, **chosen)


def _ratio_error(terms: PolicyTerms, mask: torch.Tensor) -> torch.Tensor:
    """The largest distance of a ratio from 1; 0 without trainable tokens."""
    errors = (select(terms.ratio, mask) - mask.to(terms.ratio)).abs()
    return errors.max() if mask.any() else errors.new_zeros(())


def _padded(micro: Batch, like: torch.Tensor, *names: str) -> list[torch.Tensor]:
    """Columns of tokens as [B, T], where `like` is."""
    return [micro.pad(micro[name]).to(like.device) for name in names]
