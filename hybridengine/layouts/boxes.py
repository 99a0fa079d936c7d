"""boxes: a split that no rule describes, said box by box."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hybridengine._core import UsageError
from hybridengine.layouts.grammar import check_ranks
from hybridengine.layouts.spec import Spec
from hybridengine.wording import kind_of

Box = tuple[Sequence[int], Sequence[int]]  # start and size, a number per dim
Boxes = Mapping[str, Box]  # by tensor


def rows_by_hand(
    spec: Spec, boxes: Mapping[int, Boxes]
) -> tuple[list[int], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Ranks, local tensors and pieces as the core takes them: each box is a contiguous local tensor
    under the name of the whole. Throws UsageError as Layout.from_boxes()."""
    if not isinstance(boxes, Mapping):
        raise UsageError(f"boxes are {kind_of(boxes)}. Give {{rank: {{tensor: (start, size)}}}}.")
    check_ranks(list(boxes))
    known = {name: (shape, dtype) for name, shape, dtype in spec.tensors}
    locals_: list[tuple[Any, ...]] = []
    pieces: list[tuple[Any, ...]] = []
    for rank, held in boxes.items():
        for name, box in held.items():
            if name not in known:
                raise UsageError(f"rank {rank} has a box of {name!r}, which the spec lacks.")
            shape, dtype = known[name]
            start, size = _read(name, rank, box, shape)
            strides = [math.prod(max(1, n) for n in size[dim + 1 :]) for dim in range(len(size))]
            locals_.append((rank, name, size, dtype))
            pieces.append((name, rank, name, start, size, 0, strides))
    return sorted(boxes), locals_, pieces


def _read(name: str, rank: int, box: Any, shape: Sequence[int]) -> tuple[list[int], list[int]]:
    try:
        start, size = ([int(each) for each in side] for side in box)
    except (TypeError, ValueError):
        raise UsageError(
            f"the box of {name!r} on rank {rank} is {box!r}. Give (start, size), each a number "
            f"for each dim of {list(shape)}."
        ) from None
    fits = len(start) == len(size) == len(shape) and all(
        first >= 0 and extent >= 0 and first + extent <= whole
        for first, extent, whole in zip(start, size, shape, strict=True)
    )
    if not fits:
        raise UsageError(
            f"the box of {name!r} on rank {rank} starts at {start} with size {size}: it is not "
            f"within {list(shape)}."
        )
    return start, size
