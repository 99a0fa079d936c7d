"""ratios: probability ratios between two policies at the sampled tokens."""

from __future__ import annotations

import torch

from hybridengine.rlhf.algorithms.masks import check_number, check_shapes, select
from hybridengine.rlhf.registry import Registry

# Logs of ratios are clamped to this in both directions: e^20 = 4.9e8 squares without overflow in
# float32, and no ratio that large means anything. The gradient is 0 beyond.
MAX_LOG_RATIO = 20.0

rollout_correction: Registry[torch.Tensor] = Registry("rollout correction")


def log_ratio(
    log_probs: torch.Tensor, other_log_probs: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """[B, T]: log_probs - other_log_probs, clamped. 0 behind the mask; gradient to the first."""
    check_shapes(mask, log_probs=log_probs, other_log_probs=other_log_probs)
    difference = select(log_probs, mask) - select(other_log_probs.detach(), mask)
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


@rollout_correction("token")
@torch.no_grad()
def token_correction(
    old_log_probs: torch.Tensor,
    rollout_log_probs: torch.Tensor,
    mask: torch.Tensor,
    *,
    cap: float = 2.0,
) -> torch.Tensor:
    """Weights [B, T] for the losses of the policy: min(p_trainer / p_rollout, cap) of each token.

    `old_log_probs` are the trainer's for the weights that sampled, `rollout_log_probs` what the
    engine that sampled reported. 1 behind the mask.
    """
    check_number("cap", cap, 0.0, above=True)
    return log_ratio(old_log_probs, rollout_log_probs, mask).exp().clamp(max=cap)


@rollout_correction("sequence")
@torch.no_grad()
def sequence_correction(
    old_log_probs: torch.Tensor,
    rollout_log_probs: torch.Tensor,
    mask: torch.Tensor,
    *,
    cap: float = 2.0,
) -> torch.Tensor:
    """As `token_correction`, with the product of the ratios of a row, truncated once."""
    check_number("cap", cap, 0.0, above=True)
    product = log_ratio(old_log_probs, rollout_log_probs, mask).sum(1, keepdim=True)
    weights = product.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=cap)
    return torch.where(mask, weights, 1)
