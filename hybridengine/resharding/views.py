"""views: destination tensors that need no copy, because they lie whole in a source tensor.

That is so where one piece fills the destination tensor and one source tensor of the same rank holds
all of it in the same element type.
"""

from __future__ import annotations

from typing import Any

import hybridengine.tensors as memory
from hybridengine.layouts.layout import Layout


def find_views(src: Layout, dst: Layout, rank: int, sources: list[Any]) -> dict[str, Any]:
    """Views of `sources` (this rank's source tensors, in layout order) by destination name."""
    tensors = {name: t for (name, _, _), t in zip(src.locals(rank), sources, strict=True)}
    held: dict[str, list[Any]] = {}
    for tensor, local, start, size, offset, strides in src.pieces(rank):
        held.setdefault(tensor, []).append((tensors[local], start, size, offset, strides))
    wanted: dict[str, list[Any]] = {}
    for tensor, local, start, size, _, _ in dst.pieces(rank):
        wanted.setdefault(local, []).append((tensor, start, size))
    views: dict[str, Any] = {}
    for name, shape, dtype in dst.locals(rank):
        pieces = wanted.get(name, [])
        if len(pieces) != 1 or pieces[0][2] != shape:
            continue
        tensor, start, size = pieces[0]
        for source, *place in held.get(tensor, []):
            if memory.dtype_name(source.dtype) == dtype and source.is_contiguous():
                found = _place(place, start, size)
                if found is not None:
                    views[name] = memory.view(source, size, found[1], found[0])
                    break
    return views


def _place(
    place: list[Any], start: tuple[int, ...], size: tuple[int, ...]
) -> tuple[int, tuple[int, ...]] | None:
    """Offset and strides of a box in the source tensor, None where it is not all there."""
    held_start, held_size, offset, strides = place
    for a, n, b, m in zip(start, size, held_start, held_size, strict=True):
        if a < b or a + n > b + m:
            return None
    inside = sum((a - b) * s for a, b, s in zip(start, held_start, strides, strict=True))
    return offset + inside, strides
