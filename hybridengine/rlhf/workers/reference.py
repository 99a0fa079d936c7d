"""reference: values that stay on the rank that made them, and how another rank gets at them.

A *reference* is passed in the place of its value. The rank that is called puts the value there
again: it moves from worker to worker, never through the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hybridengine._core import UsageError


@dataclass(frozen=True)
class Reference:
    """A value in the object store. `summary` is what its maker told the controller of it; `rank` of
    `pool` made it, -1 for the controller."""

    ref: Any  # ray.ObjectRef
    summary: Any = None
    rank: int = -1
    pool: str = ""


@dataclass(frozen=True)
class Pick:
    """The rows at `rows` of the Batch behind `reference`, in this order."""

    reference: Reference
    rows: Sequence[int]


@dataclass(frozen=True)
class Stored:
    """What stands for a value that stays in its maker's store. Ray keeps small answers with the one
    who asked, the controller: rows would pass through it."""

    ref: Any


class Resolver:
    """Puts values in the place of references, on the rank that is called.

    The last few values are kept: stages of a step pass the same ones on. Roles never change them.
    Parts are taken once, and not kept.
    """

    _KEPT = 8

    def __init__(self) -> None:
        self._recent: dict[Any, Any] = {}  # by Ray's reference, the last used at the end

    def resolve(self, argument: Any) -> Any:
        """`argument` with values. Looks into lists, tuples and dicts. A list of nothing but
        references and picks whose values are Batches becomes one Batch, their rows in order. Blocks
        until the values are here."""
        needed = list(dict.fromkeys(_piece_of(leaf).ref for leaf in leaves(argument)))
        if not needed:
            return argument
        import ray

        missing = [ref for ref in needed if ref not in self._recent]
        found = dict(zip(missing, ray.get(missing), strict=True))
        values = {ref: found[ref] if ref in found else self._recent.pop(ref) for ref in needed}
        parts = {ref: value.ref for ref, value in values.items() if isinstance(value, Stored)}
        whole = [(ref, value) for ref, value in values.items() if ref not in parts]
        self._recent = dict([*self._recent.items(), *whole][-self._KEPT :])
        values |= zip(parts, ray.get(list(parts.values())), strict=True)
        return _with_values(argument, values)


def leaves(argument: Any) -> Iterator[Reference | Pick]:
    """The references and picks in `argument`, in the order in which `replaced` meets them."""
    if isinstance(argument, (Reference, Pick)):
        yield argument
    elif isinstance(argument, (list, tuple)):
        for each in argument:
            yield from leaves(each)
    elif isinstance(argument, dict):
        for each in argument.values():
            yield from leaves(each)


def replaced(argument: Any, by: Callable[[Reference | Pick], Any]) -> Any:
    """`argument` with by(leaf) in the place of each of its leaves."""
    if isinstance(argument, (Reference, Pick)):
        return by(argument)
    if isinstance(argument, (list, tuple)):
        return type(argument)(replaced(each, by) for each in argument)
    if isinstance(argument, dict):
        return {name: replaced(each, by) for name, each in argument.items()}
    return argument


def _piece_of(leaf: Reference | Pick) -> Reference:
    return leaf.reference if isinstance(leaf, Pick) else leaf


def cut_rows(piece: Any, parts: Sequence[Sequence[int]]) -> list[Any]:
    """The rows of each part, as Batches. Throws UsageError on what is no Batch."""
    _check_batch(piece)
    return [piece.select(part) for part in parts]


def _with_values(argument: Any, values: dict[Any, Any]) -> Any:
    if isinstance(argument, Reference):
        return values[argument.ref]
    if isinstance(argument, Pick):
        return _rows_of([argument], values)
    if isinstance(argument, dict):
        return {name: _with_values(each, values) for name, each in argument.items()}
    if isinstance(argument, list) and _is_one_batch(argument, values):
        return _rows_of(argument, values)
    if isinstance(argument, (list, tuple)):
        return type(argument)(_with_values(each, values) for each in argument)
    return argument


def _is_one_batch(parts: list[Any], values: dict[Any, Any]) -> bool:
    """Nothing but picks, and references to batches."""
    if not parts or not all(isinstance(part, (Reference, Pick)) for part in parts):
        return False
    whole = [part for part in parts if isinstance(part, Reference)]
    return all(_is_batch(values[part.ref]) for part in whole)


def _rows_of(parts: list[Reference | Pick], values: dict[Any, Any]) -> Any:
    """The rows of all parts, in order. Every batch is joined once and the rows are taken in one go:
    picks of one row each, from many batches in turn, cost no more than whole ones."""
    from hybridengine.rlhf.batch import Batch

    needed = dict.fromkeys(_piece_of(part).ref for part in parts)
    first, offset = {}, 0
    for ref in needed:
        _check_batch(values[ref])
        first[ref], offset = offset, offset + len(values[ref])
    joined = Batch.concat([values[ref] for ref in needed])
    if len(needed) == len(parts) and all(isinstance(part, Reference) for part in parts):
        return joined
    index: list[int] = []
    for part in parts:
        if isinstance(part, Pick):
            index += [first[part.reference.ref] + row for row in part.rows]
        else:
            index += range(first[part.ref], first[part.ref] + len(values[part.ref]))
    return joined.select(index)


def _check_batch(value: Any) -> None:
    if not _is_batch(value):
        raise UsageError(
            f"rows are picked from a {type(value).__name__}: only a Batch has rows. Pass the "
            "reference itself."
        )


def _is_batch(value: Any) -> bool:
    from hybridengine.rlhf.batch import Batch

    return isinstance(value, Batch)
