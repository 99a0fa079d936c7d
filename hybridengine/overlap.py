"""overlap: whether strided tensors share elements of memory, from addresses and strides alone.

Extents are compared first; only where they meet is it searched for a common byte, for columns of
one matrix interleave and share nothing. The search is exact, and bounded.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

# Candidates that a search looks at; those of tensors that people slice are found at once.
_MAX_WORK = 100_000
# Elements of a tensor whose places are listed one by one.
_MAX_LISTED = 1 << 22


@dataclass(frozen=True)
class Strided:
    """Where the elements of a tensor are; strides count elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element_bytes: int

    @functools.cached_property
    def end(self) -> int:
        """One past the last byte."""
        span = 1 + sum((n - 1) * each for n, each in zip(self.shape, self.strides, strict=True))
        return self.address + span * self.element_bytes

    @functools.cached_property
    def grid_bytes(self) -> int:
        """All elements start at multiples of this from the first; 0 where there is only one."""
        steps = (s for n, s in zip(self.shape, self.strides, strict=True) if n > 1)
        return math.gcd(*steps) * self.element_bytes

    def repeats(self) -> bool:
        """Whether two of its elements lie in one place, or whether that would take too long to
        tell."""
        steps = sorted((s, n) for n, s in zip(self.shape, self.strides, strict=True) if n > 1)
        if 0 in self.shape or _nested(steps):
            return False
        if any(step == 0 for step, _ in steps) or math.prod(self.shape) > _MAX_LISTED:
            return True
        places = np.zeros(1, np.int64)
        for step, size in steps:
            places = (places[:, None] + step * np.arange(size)).reshape(-1)
        return len(np.unique(places)) < len(places)

    def shares(self, other: Strided) -> bool:
        """Whether they have a byte in common, or whether that would take too long to tell."""
        if 0 in self.shape or 0 in other.shape:
            return False
        if self.end <= other.address or other.end <= self.address:
            return False
        grid = math.gcd(self.grid_bytes, other.grid_bytes)
        ahead = (other.address - self.address) % grid if grid else 0
        if self.element_bytes <= ahead <= grid - other.element_bytes:
            return False  # as columns: they never meet on this grid
        try:
            views = np.asarray(_View(self)), np.asarray(_View(other))
            return np.shares_memory(*views, _MAX_WORK)  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return True


class _View:
    """What numpy needs to know of memory that nobody reads."""

    def __init__(self, strided: Strided) -> None:
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "data": (strided.address, True),
            "typestr": f"|V{strided.element_bytes}",
            "shape": strided.shape,
            "strides": tuple(each * strided.element_bytes for each in strided.strides),
        }


def _nested(steps: list[tuple[int, int]]) -> bool:
    """Whether each dim steps over all that the smaller ones reach."""
    reach = 0
    for step, size in steps:
        if step <= reach:
            return False
        reach += (size - 1) * step
    return True
