"""reference: values that stay on the rank that made them, and how another rank gets at them.

A *reference* is passed in the place of its value. The rank that is called puts the value there
again: it moves from worker to worker, never through the controller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hybridengine._core import UsageError


@dataclass(frozen=True)
class Reference:
    """A value in the object store. `summary` is what its maker told the controller of it; `rank`
    made it, -1 for the controller."""

    ref: Any  # ray.ObjectRef
    summary: Any = None
    rank: int = -1


@dataclass(frozen=True)
class Pick:
    """The rows at `rows` of the Batch behind `reference`, in this order."""

    reference: Reference
    rows: Sequence[int]


def resolve(argument: Any) -> Any:
    """`argument` with values in the place of references, on the rank that is called.

    Looks into lists, tuples and dicts. A list of nothing but references and picks whose values are
    Batches becomes one Batch, their rows in order. Blocks until the values are here.
    """
    needed = list({each.ref: None for each in _references(argument)})
    if not needed:
        return argument
    import ray

    return _with_values(argument, dict(zip(needed, ray.get(needed), strict=True)))


def _references(argument: Any) -> Iterator[Reference]:
    if isinstance(argument, Reference):
        yield argument
    elif isinstance(argument, Pick):
        yield argument.reference
    elif isinstance(argument, (list, tuple)):
        for each in argument:
            yield from _references(each)
    elif isinstance(argument, dict):
        for each in argument.values():
            yield from _references(each)


def _with_values(argument: Any, values: dict[Any, Any]) -> Any:
    if isinstance(argument, Reference):
        return values[argument.ref]
    if isinstance(argument, Pick):
        return _picked(values[argument.reference.ref], argument)
    if isinstance(argument, dict):
        return {name: _with_values(each, values) for name, each in argument.items()}
    if not isinstance(argument, (list, tuple)):
        return argument
    found = [_with_values(each, values) for each in argument]
    if isinstance(argument, tuple):
        return tuple(found)
    if all(isinstance(each, (Reference, Pick)) for each in argument):
        return _joined(found)
    return found


def _picked(value: Any, pick: Pick) -> Any:
    from hybridengine.rlhf.batch import Batch

    if not isinstance(value, Batch):
        raise UsageError(
            f"rows are picked from a {type(value).__name__}: only a Batch has rows. Pass the "
            f"reference itself."
        )
    return value.select(pick.rows)


def _joined(found: list[Any]) -> Any:
    from hybridengine.rlhf.batch import Batch

    if found and all(isinstance(each, Batch) for each in found):
        return Batch.concat(found)
    return found
