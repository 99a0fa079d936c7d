"""masters: the float32 weights behind shards of a narrower type, which step in their place.

A step that is smaller than the spacing of the narrow type would be lost in the shards; the masters
keep it. Shards are their masters, rounded to nearest even, after every step.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

_WIDE = torch.float32


class Masters:
    """Of those of `weights` that are narrower than float32. Others are their own."""

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        """Masters begin as the shards are."""
        narrow = [each for each in weights if each.dtype.itemsize < _WIDE.itemsize]
        self._narrow = {id(each): each for each in narrow}
        self._wide = {id(each): each.detach().to(_WIDE) for each in narrow}

    def of(self, weight: torch.Tensor) -> torch.Tensor:
        """What steps, and what a checkpoint holds, for a weight of the module."""
        return self._wide.get(id(weight), weight)

    def take_gradients(self) -> None:
        """Moves gradients from the shards to their masters, where they add up in float32."""
        for key, weight in self._narrow.items():
            if weight.grad is not None:
                wide, held = weight.grad.to(_WIDE), self._wide[key]
                held.grad = wide if held.grad is None else held.grad.add_(wide)
                weight.grad = None

    @torch.no_grad()
    def write(self) -> None:
        """Rounds the masters into the shards."""
        for key, weight in self._narrow.items():
            weight.copy_(self._wide[key])

    @torch.no_grad()
    def take_in(self) -> None:
        """Reads what others wrote into the shards: elements that are no rounding of their master
        any more."""
        for key, weight in self._narrow.items():
            held = self._wide[key]
            held.copy_(torch.where(held.to(weight.dtype) == weight, held, weight.to(_WIDE)))
