"""value_losses: the loss of the critic at each token, before aggregation."""

from __future__ import annotations

from typing import NamedTuple

import torch

from hybridengine.rlhf.algorithms.masks import check_number, check_shapes, select
from hybridengine.rlhf.registry import Registry


class ValueTerms(NamedTuple):
    """Both [B, T]. Behind the mask `losses` is 0 and `clipped` false."""

    losses: torch.Tensor
    clipped: torch.Tensor  # bool: the bound decided


value_loss: Registry[ValueTerms] = Registry("value loss")


@value_loss("mse")
def mse(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor
) -> ValueTerms:
    """(values - returns)^2 / 2. All floating [B, T]; only `values` has a gradient."""
    check_shapes(mask, values=values, old_values=old_values, returns=returns)
    losses = 0.5 * (select(values, mask) - select(returns.detach(), mask)).square()
    return ValueTerms(losses, torch.zeros_like(mask))


@value_loss("clip")
def clip_value(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_range: float = 0.2,
) -> ValueTerms:
    """The larger of `mse` and `mse` with the value within clip_range of `old_values`."""
    check_number("clip_range", clip_range, 0.0, above=True)
    free = mse(values, old_values, returns, mask).losses
    old = select(old_values.detach(), mask)
    near = old + (select(values, mask) - old).clamp(-clip_range, clip_range)
    bounded = mse(near, old_values, returns, mask).losses
    return ValueTerms(torch.maximum(free, bounded), bounded > free)
