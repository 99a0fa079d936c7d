"""controllers: the weight of the KL, fixed or steered towards a target.

A controller is a value: `updated` returns the next one, and its fields are all there is to save.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from hybridengine._core import UsageError
from hybridengine.rlhf.algorithms.masks import check_number
from hybridengine.rlhf.registry import Registry

_MAX_ERROR = 0.2  # the largest relative error that one update answers


class KLController(Protocol):
    """Holds the weight `coef` of the KL in reward or loss."""

    @property
    def coef(self) -> float: ...

    def updated(self, kl: float, num_samples: int) -> KLController:
        """The controller after `num_samples` responses with mean KL `kl`, the same on all ranks.

        Throws UsageError if `kl` is NaN or infinite; this controller stays as it is.
        """
        ...


kl_controller: Registry[KLController] = Registry("KL controller")


@kl_controller("fixed")
@dataclass(frozen=True, kw_only=True)
class FixedKL:
    """Always the same `coef`."""

    coef: float = 0.01

    def __post_init__(self) -> None:
        check_number("coef", self.coef, 0.0)

    def updated(self, kl: float, num_samples: int) -> FixedKL:
        _check_observed(kl, num_samples)
        return self


@kl_controller("adaptive")
@dataclass(frozen=True, kw_only=True)
class AdaptiveKL:
    """coef *= 1 + e min(num_samples / horizon, 1), e = clamp(kl / target - 1, -0.2, 0.2).

    Without the min a batch of more than five horizons could turn `coef` negative.
    """

    coef: float = 0.01
    target: float = 6.0
    horizon: float = 10000.0

    def __post_init__(self) -> None:
        check_number("coef", self.coef, 0.0, above=True)
        check_number("target", self.target, 0.0, above=True)
        check_number("horizon", self.horizon, 0.0, above=True)

    def updated(self, kl: float, num_samples: int) -> AdaptiveKL:
        _check_observed(kl, num_samples)
        error = min(max(kl / self.target - 1, -_MAX_ERROR), _MAX_ERROR)
        factor = 1 + error * min(num_samples / self.horizon, 1.0)
        return replace(self, coef=self.coef * factor)


def _check_observed(kl: float, num_samples: int) -> None:
    if not math.isfinite(kl):
        raise UsageError(
            f"the KL controller was given kl={kl}: its coefficient stays as it was. "
            "Look for a log-prob that is NaN or infinite at a trainable token."
        )
    check_number("num_samples", num_samples, 0)
