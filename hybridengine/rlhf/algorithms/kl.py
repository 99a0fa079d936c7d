"""kl: how far the policy is from the reference at the sampled tokens, and what that costs.

Estimates of KL(policy || reference) from x = log p_ref - log p at tokens that the policy sampled.
"""

from __future__ import annotations

import torch

from hybridengine.rlhf.algorithms.masks import check_number, check_shapes
from hybridengine.rlhf.algorithms.moments import AllReduce, mean_and_var
from hybridengine.rlhf.algorithms.ratios import log_ratio
from hybridengine.rlhf.registry import Registry

kl_estimator: Registry[torch.Tensor] = Registry("KL estimator")


@kl_estimator("k1")
def k1(log_probs: torch.Tensor, ref_log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """-x, [B, T]. Unbiased, may be negative. As a loss its expected gradient is 0."""
    return log_ratio(log_probs, ref_log_probs, mask)


@kl_estimator("k2")
def k2(log_probs: torch.Tensor, ref_log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """x^2 / 2, [B, T]. Biased value; as a loss its expected gradient is that of the KL."""
    return 0.5 * log_ratio(log_probs, ref_log_probs, mask).square()


@kl_estimator("k3")
def k3(
    log_probs: torch.Tensor,
    ref_log_probs: torch.Tensor,
    mask: torch.Tensor,
    *,
    cap: float = 10.0,
) -> torch.Tensor:
    """e^x - 1 - x, [B, T]. Unbiased and never negative.

    Where x > 0 the estimate is at most `cap`, with gradient 0 there. Where x < 0 it grows no faster
    than -x and needs none. As a loss its expected gradient is not that of the KL.
    """
    check_number("cap", cap, 0.0, above=True)
    x = -log_ratio(log_probs, ref_log_probs, mask)  # bounded before the exponential
    estimate = (x.expm1() - x).clamp(min=0)  # an expm1 off by one rounding
    return torch.where(x > 0, estimate.clamp(max=cap), estimate)


def with_unbiased_gradient(
    estimate: torch.Tensor,
    log_probs: torch.Tensor,
    ref_log_probs: torch.Tensor,
    mask: torch.Tensor,
    *,
    old_log_probs: torch.Tensor | None = None,
) -> torch.Tensor:
    """`estimate` [B, T] in value, with the gradient of k2: in expectation that of the KL.

    `old_log_probs`: of the policy that sampled, if it is not the one being trained; the gradient is
    then weighed by the ratio of the two, which has none itself.
    """
    check_shapes(mask, estimate=estimate)
    slope = k2(log_probs, ref_log_probs, mask)
    if old_log_probs is not None:
        slope = slope * log_ratio(log_probs.detach(), old_log_probs, mask).exp()
    return torch.where(mask, estimate.detach(), 0) + slope - slope.detach()


def over_kl_limit(
    kl: torch.Tensor,
    mask: torch.Tensor,
    *,
    limit: float,
    all_reduce: AllReduce | None = None,
) -> bool:
    """Whether the mean KL over the trainable tokens of all ranks is above `limit`.

    Every rank gets the same answer, so that all stop or none does. A mean that is NaN is above.
    Collective if `all_reduce` is given.
    """
    check_number("limit", limit, 0.0, above=True)
    return not float(mean_and_var(kl, mask, all_reduce=all_reduce).mean) <= limit
