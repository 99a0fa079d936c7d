"""fresh: destination tensors that nobody else holds.

Where the transport lets peers map memory, they lie in one segment, so that sources write them in
place. What a run gives away holds a lease of its segment; when the last tensor, view or array of it
is gone the memory is used by the next run, or goes back to the system within a second.
"""

from __future__ import annotations

from typing import Any

import hybridengine.tensors as memory
from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.comm import Communicator
from hybridengine.layouts.layout import Layout
from hybridengine.options import whole
from hybridengine.wording import kind_of


class FreshTensors:
    """Makes the local tensors of this rank, again and again."""

    def __init__(self, layout: Layout, comm: Communicator) -> None:
        self._rows = layout.locals(comm.rank)
        self._offsets = _core.packed_offsets(layout.core, comm.rank)
        self._padded = set(layout.core.padded(comm.rank))
        self._places = memory.placed(self._rows, self._offsets)
        self._with_padding = [i for i, row in enumerate(self._rows) if row[0] in self._padded]
        shared = comm.core.maps and self._offsets[-1] > 0
        self._memory = _core.FreshMemory(self._offsets[-1]) if shared else None
        self.reserve_seconds = 0.0  # of the last make()

    def make(self, *, shared: bool = True) -> list[Any]:
        """In layout order. Padding is zero, the rest is undefined. `shared`: where peers can map
        it."""
        self.reserve_seconds = 0.0
        lease = self._lease() if shared else None
        if lease is None:
            return [
                memory.allocate(shape, dtype, zeroed=name in self._padded)
                for name, shape, dtype in self._rows
            ]
        tensors = memory.in_segment(lease, self._places)
        for i in self._with_padding:
            tensors[i].zero_()
        return tensors

    def _lease(self) -> Any:
        if self._memory is None:
            return None
        try:
            lease = self._memory.lend()
        except UsageError as error:
            _core.log("warn", "engine", f"peers cannot write in place: {error}")
            self._memory = None
            return None
        self.reserve_seconds = self._memory.reserve_seconds
        return lease


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
    segment = _core.Region(max(offsets[-1], 1))
    tensors = memory.in_segment(segment, memory.placed(rows, offsets))
    return {name: tensor for (name, _, _), tensor in zip(rows, tensors, strict=True)}
