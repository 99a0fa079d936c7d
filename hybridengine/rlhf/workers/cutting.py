"""cutting: picks of rows become parts, cut where the rows lie: a rank fetches its own rows alone.

A *piece* is a Batch in the store of the rank that made it; a *part* is those of its rows that one
place takes. Without parts every rank would fetch nearly every piece, to take a few rows of it:
ranks times the batch, where parts together are the batch, however many ranks there are. Pure
functions of arguments; what cuts a piece comes from the caller, which is GroupMethod.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hybridengine.rlhf.workers.reference import Pick, Reference, leaves, replaced

# By the places that take rows of a piece, the rows of each; gives their parts.
CutPiece = Callable[[Reference, list[list[int]]], list[Reference]]


def with_parts(arguments: Sequence[Any], cut_piece: CutPiece) -> list[Any]:
    """The arguments of each place, with picks of parts instead of picks of pieces.

    A piece of which one place alone takes rows stays whole: no other fetches it.
    """
    pieces: dict[Any, Reference] = {}
    takers: dict[Any, dict[int, list[int]]] = {}  # by piece, by place: its rows
    for place, argument in enumerate(arguments):
        for pick in leaves(argument):
            if isinstance(pick, Pick):
                ref = pick.reference.ref
                pieces[ref] = pick.reference
                takers.setdefault(ref, {}).setdefault(place, []).extend(pick.rows)
    parts = {
        (ref, place): part
        for ref, rows in takers.items()
        if len(rows) > 1
        for place, part in zip(rows, cut_piece(pieces[ref], list(rows.values())), strict=True)
    }
    return [_of_place(argument, place, parts) for place, argument in enumerate(arguments)]


def _of_place(argument: Any, place: int, parts: dict[tuple[Any, int], Reference]) -> Any:
    """A part has its rows in the order in which the picks of its place name them."""
    taken: dict[Any, int] = {}

    def of_part(leaf: Reference | Pick) -> Reference | Pick:
        ref = leaf.reference.ref if isinstance(leaf, Pick) else None
        if not isinstance(leaf, Pick) or (ref, place) not in parts:
            return leaf
        start = taken.get(ref, 0)
        taken[ref] = start + len(leaf.rows)
        return Pick(parts[ref, place], range(start, taken[ref]))

    return replaced(argument, of_part)
