"""fresh: destination tensors that nobody else holds.

Where the transport lets peers map memory, they lie in one segment, so that sources write them in
place. A segment is used again once all tensors of an earlier run in it are gone; so a caller that
drops its results before the next run causes no allocation.
"""

from __future__ import annotations

import sys
from typing import Any

import hybridengine.tensors as memory
from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.comm import Communicator
from hybridengine.layouts.layout import Layout
from hybridengine.options import whole
from hybridengine.wording import kind_of

# Two: one in the caller's hands while the other is filled.
_KEPT = 2
# References to a segment that is in the list below and nowhere else, while it is looked at there.
_UNUSED_REFERENCES = 3


class FreshTensors:
    """Makes the local tensors of this rank, again and again."""

    def __init__(self, layout: Layout, comm: Communicator) -> None:
        self._rows = layout.locals(comm.rank)
        self._offsets = _core.packed_offsets(layout.core, comm.rank)
        self._padded = set(layout.core.padded(comm.rank))
        self._shared = comm.core.direct and self._offsets[-1] > 0
        self._kept: list[Any] = []

    def make(self) -> list[Any]:
        """In layout order. Padding is zero, the rest is undefined."""
        segment = self._segment() if self._shared else None
        if segment is None:
            return [
                memory.allocate(shape, dtype, zeroed=name in self._padded)
                for name, shape, dtype in self._rows
            ]
        tensors = memory.in_segment(segment, self._rows, self._offsets)
        for (name, _, _), tensor in zip(self._rows, tensors, strict=True):
            if name in self._padded:
                tensor.zero_()
        return tensors

    def _segment(self) -> Any:
        for segment in self._kept:
            if sys.getrefcount(segment) == _UNUSED_REFERENCES:
                return segment
        try:
            made = _core.Segment(self._offsets[-1])
        except UsageError as error:
            _core.log("warn", "engine", f"peers cannot write in place: {error}")
            self._shared = False
            return None
        self._kept = [*self._kept[-_KEPT + 1 :], made]
        return made


def empty(layout: Layout, rank: int) -> dict[str, Any]:
    """Destination tensors of `rank` by name, in memory that other ranks of this host can map:
    passed as out=, they are written in place, with one copy in all. Uninitialised but for padding,
    which is zero.

    {} where the rank is not in the layout. Throws UsageError where there is no room.
    """
    if not isinstance(layout, Layout):
        raise UsageError(
            f"layout is {kind_of(layout)}, which has no shapes. Bind it first: "
            "LayoutRule.parse('vllm(tp=2)').bind(spec)."
        )
    if whole("rank", rank) not in layout.ranks:
        return {}
    rows = layout.locals(rank)
    offsets = _core.packed_offsets(layout.core, rank)
    segment = _core.Segment(max(offsets[-1], 1))
    tensors = memory.in_segment(segment, rows, offsets)
    return {name: tensor for (name, _, _), tensor in zip(rows, tensors, strict=True)}
