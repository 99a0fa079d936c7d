"""moments: mean and variance over the trainable tokens of all ranks, and whitening by them.

Two passes in float64: the mean first, then squared distances from it. The difference of mean square
and squared mean is never taken: its rounding can be larger than the variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from hybridengine.collective import collectives
from hybridengine.comm import Communicator
from hybridengine.rlhf.algorithms.masks import check_number, check_shapes, widen

# Takes a small float64 tensor, returns its sum over all ranks; may write it into what it takes.
# None stands for a rank that is alone.
AllReduce = Callable[[torch.Tensor], torch.Tensor]

# A spread below this share of the mean is what rounding in float64 leaves of equal values. The
# smallest real spread of float32 values is 2^-24 of them.
_ROUNDING = 2.0**-40


class Moments(NamedTuple):
    """float64 tensors without dims. `var` divides by `num`; both are 0 where it is."""

    mean: torch.Tensor
    var: torch.Tensor
    num: torch.Tensor


def sum_over(comm: Communicator | None = None) -> AllReduce:
    """The AllReduce of the ranks of `comm`; None: of torch's default process group."""

    def all_reduce(values: torch.Tensor) -> torch.Tensor:
        collectives.all_reduce(values, "sum", comm=comm)
        return values

    return all_reduce


def reduced(values: torch.Tensor, all_reduce: AllReduce | None) -> torch.Tensor:
    """The sum of `values` over all ranks."""
    return values if all_reduce is None else all_reduce(values)


def mean_and_var(
    values: torch.Tensor, mask: torch.Tensor, *, all_reduce: AllReduce | None = None
) -> Moments:
    """Moments of `values` [B, T] where `mask` is true, over all ranks.

    Collective if `all_reduce` is given: it is called twice on every rank, with tokens or without.
    """
    check_shapes(mask, values=values)
    wide = torch.where(mask, values.detach().double(), 0)
    total, count = reduced(torch.stack([wide.sum(), mask.sum().double()]), all_reduce)
    mean = total / count.clamp(min=1)
    distance = torch.where(mask, wide - mean, 0)
    squares = reduced(distance.square().sum()[None], all_reduce)[0]
    return Moments(mean, squares / count.clamp(min=1), count)


def whiten(
    values: torch.Tensor,
    mask: torch.Tensor,
    *,
    eps: float = 1e-8,
    all_reduce: AllReduce | None = None,
) -> torch.Tensor:
    """(values - mean) / sqrt(var + eps) over the trainable tokens of all ranks; without gradient.

    [B, T] in, [B, T] out, 0 behind the mask and everywhere if all values are equal. Collective like
    `mean_and_var`.
    """
    check_number("eps", eps, 0.0, above=True)
    mean, var, _ = mean_and_var(values, mask, all_reduce=all_reduce)
    differ = ~(var <= (mean * _ROUNDING).square())  # NaN stays visible
    white = (values.detach().double() - mean) / (var + eps).sqrt()
    return torch.where(mask & differ, white, 0).to(widen(values).dtype)


def explained_variance(
    values: torch.Tensor,
    returns: torch.Tensor,
    mask: torch.Tensor,
    *,
    all_reduce: AllReduce | None = None,
) -> float:
    """1 - var(returns - values) / var(returns) over the trainable tokens of all ranks; NaN where
    all returns are equal. All [B, T]. Collective like `mean_and_var`."""
    wide = returns.double()
    left = mean_and_var(wide - values, mask, all_reduce=all_reduce).var
    whole = mean_and_var(wide, mask, all_reduce=all_reduce).var
    return float(1 - left / whole) if whole > 0 else math.nan
