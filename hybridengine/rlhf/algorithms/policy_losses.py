"""policy_losses: the loss of the policy at each token, before aggregation.

Each takes `log_probs` (with gradient), `old_log_probs` of the policy that sampled, and
`advantages`, all floating [B, T]. The ratio is exp(log_probs - old_log_probs): exactly 1 where they
are equal.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from hybridengine.rlhf.algorithms.masks import check_number, check_shapes, row_mean, select
from hybridengine.rlhf.algorithms.ratios import log_ratio
from hybridengine.rlhf.registry import Registry


class PolicyTerms(NamedTuple):
    """All [B, T]. Behind the mask `losses` is 0, `ratio` 1, `clipped` false."""

    losses: torch.Tensor
    ratio: torch.Tensor  # without gradient
    clipped: torch.Tensor  # bool: the bound decided, so that the token has no gradient


policy_loss: Registry[PolicyTerms] = Registry("policy loss")


@policy_loss("clip")
def clip(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_ratio: float = 0.2,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float | None = None,
) -> PolicyTerms:
    """max(-A r, -A clamp(r, 1 - low, 1 + high)), and at most -A c where A < 0.

    `low` and `high` are clip_ratio unless they are given (clip-higher); without `c` there is no
    third bound (dual clip).
    """
    low = clip_ratio if clip_ratio_low is None else clip_ratio_low
    high = clip_ratio if clip_ratio_high is None else clip_ratio_high
    ratio = log_ratio(log_probs, old_log_probs, mask).exp()
    terms = _clipped(ratio, advantages, mask, low, high)
    if clip_ratio_c is None:
        return terms
    check_number("clip_ratio_c", clip_ratio_c, 1.0, above=True)
    known = select(advantages.detach(), mask)
    bound = -known * clip_ratio_c
    beyond = (known < 0) & (terms.losses > bound)
    losses = torch.where(beyond, bound, terms.losses)
    return PolicyTerms(losses, terms.ratio, terms.clipped | beyond)


@policy_loss("gspo")
def gspo(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_ratio_low: float = 3e-4,
    clip_ratio_high: float = 4e-4,
) -> PolicyTerms:
    """`clip` with one ratio a row: the geometric mean of the ratios of its tokens.

    Its gradient reaches every token through its own log-prob. Meant for "seq-mean-token-mean".
    """
    check_shapes(mask, log_probs=log_probs, old_log_probs=old_log_probs)
    wide = select(log_probs, mask)
    mean = row_mean(log_ratio(log_probs.detach(), old_log_probs, mask), mask)[:, None]
    ratio = torch.where(mask, wide - wide.detach() + mean, 0).exp()
    return _clipped(ratio, advantages, mask, clip_ratio_low, clip_ratio_high)


@policy_loss("cispo")
def cispo(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_ratio_low: float = 1.0,
    clip_ratio_high: float = 4.0,
) -> PolicyTerms:
    """-A log p, weighed by the ratio, which is clamped and has no gradient.

    So no token loses its gradient; `clipped` says whose weight was bounded. clip_ratio_low=1 is no
    lower bound.
    """
    _check_bounds(clip_ratio_low, clip_ratio_high)
    check_shapes(mask, advantages=advantages)
    ratio = log_ratio(log_probs.detach(), old_log_probs, mask).exp()
    weight = ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    losses = -weight * select(advantages.detach(), mask) * select(log_probs, mask)
    return PolicyTerms(losses, ratio, weight != ratio)


def _clipped(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    low: float,
    high: float,
) -> PolicyTerms:
    _check_bounds(low, high)
    check_shapes(mask, advantages=advantages)
    known = select(advantages.detach(), mask)
    free = -known * ratio
    bounded = -known * ratio.clamp(1 - low, 1 + high)
    return PolicyTerms(torch.maximum(free, bounded), ratio.detach(), bounded > free)


def _check_bounds(low: float, high: float) -> None:
    check_number("clip_ratio_low", low, 0.0, 1.0)
    check_number("clip_ratio_high", high, 0.0)
