"""fit: a caller's tensors in the order of a layout, and the proof that they are what it says.

Names meet through canonical_names(). Shapes and element types must be the layout's; a DTensor,
which knows which part of the whole it is, must be the part that the layout says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import hybridengine.tensors as memory
from hybridengine._core import UsageError
from hybridengine.layouts.layout import Layout
from hybridengine.layouts.names import canonical_names, check_matched
from hybridengine.layouts.placements import Placement, check_placed


def in_order(
    layout: Layout,
    rank: int,
    given: Mapping[str, Any],
    placements: Mapping[str, Placement],
    *,
    side: str,
    aliases: Iterable[tuple[str, str]],
    partial: bool,
    road: str,
    dst: str,
) -> list[Any]:
    """The given tensors in the order of the local tensors of `rank`.

    `side`: "model" or "out". `aliases`: (second name, name) of tied tensors, of which the second
    may be given too. `partial`: what the layout has no place for is left out. `road`: both ends,
    and `dst` one of them, for errors. Throws UsageError on a tensor that is missing, left over, or
    does not fit.
    """
    rows = layout.locals(rank)
    wanted = [name for name, _, _ in rows]
    seconds = {alias for alias, _ in aliases} - set(wanted)
    names = canonical_names(given, [*wanted, *seconds])
    by_name = {names[name]: tensor for name, tensor in given.items()}
    offered = [name for name in by_name if name not in seconds]
    if side == "model":
        written = {canonical: name for name, canonical in names.items()}
        check_matched(offered, wanted, written=written, dst=dst, partial=partial)
    else:
        offered = [name for name in offered if not partial or name in set(wanted)]
        check_matched(wanted, offered)
    placed = {names[name]: each for name, each in placements.items() if names[name] in set(wanted)}
    check_placed(layout, rank, side, placed)
    for name, shape, dtype in rows:
        found = tuple(by_name[name].shape), memory.dtype_name(by_name[name].dtype)
        if found != (shape, dtype):
            raise UsageError(
                f"{side} tensor {name!r} is {list(found[0])} {found[1]} on rank {rank}, "
                f"{layout.text} has {list(shape)} {dtype} there ({road}). Pass the shard that this "
                "layout gives to this rank, another layout, or dtype= to convert."
            )
    return [by_name[name] for name in wanted]
