"""shards: one rank's part of a checkpoint, read by slices and compared with the file again.

No rank ever holds a whole model: it reads the boxes that its layout gives it, and compares one
local tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import hybridengine.tensors as memory
from hybridengine.checkpoint import Checkpoint
from hybridengine.layouts.layout import Layout

Tick = Callable[[int], None]  # takes the bytes that were dealt with


def load_shards(
    checkpoint: Checkpoint, layout: Layout, rank: int, tick: Tick = lambda _: None
) -> dict[str, Any]:
    """The local tensors of `rank` under `layout`, filled from the checkpoint; padding is zero."""
    return {name: tensor for name, tensor in _read(checkpoint, layout, rank, tick)}


def count_mismatched(
    checkpoint: Checkpoint,
    layout: Layout,
    rank: int,
    tensors: dict[str, Any],
    tick: Tick = lambda _: None,
) -> int:
    """The elements of `tensors` whose bits are not the checkpoint's, padding included, which must
    be zero. Depends on the layout only, not on how the bytes came."""
    return sum(
        memory.num_different(tensors[name], expected)
        for name, expected in _read(checkpoint, layout, rank, tick)
    )


def _read(
    checkpoint: Checkpoint, layout: Layout, rank: int, tick: Tick
) -> Iterator[tuple[str, Any]]:
    if rank not in layout.ranks:
        return
    boxes: dict[str, list[Any]] = {}
    for tensor, local, *place in layout.pieces(rank):
        boxes.setdefault(local, []).append((tensor, *place))
    for name, shape, dtype in layout.locals(rank):
        filled = memory.allocate(shape, dtype, zeroed=True)
        for tensor, start, size, offset, strides in boxes.get(name, []):
            memory.view(filled, size, strides, offset).copy_(checkpoint.slice(tensor, start, size))
        tick(filled.nbytes)
        yield name, filled
