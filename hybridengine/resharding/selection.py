"""selection: what a partial reshard moves: what `out` names and the model has, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.layouts.adapters import check_adapters
from hybridengine.layouts.layout import Layout
from hybridengine.layouts.names import canonical_names
from hybridengine.layouts.spec import Spec
from hybridengine.resharding.agree import Statement
from hybridengine.wording import listed

_Names = Mapping[int, set[str]]  # of local tensors, by rank


def select(src: Layout, dst: Layout, statements: list[Statement]) -> tuple[Layout, Layout]:
    """Both layouts, cut down to the tensors that are moved.

    Throws UsageError where a rank of `dst` passes no `out`; where a fused tensor would lack a part;
    and where an adapter would be left behind.
    """
    for rank in dst.ranks:
        if statements[rank].out is None:
            raise UsageError(
                f"partial=True moves what out= names, and rank {rank} of dst {dst.text} passes no "
                "out. Pass the tensors to write into, {} where the rank has none of them."
            )
    held = {rank: _held_names(statements[rank]) for rank in src.ranks}
    given = {rank: _local_names(src, rank, names) for rank, names in held.items()}
    asked = {rank: _local_names(dst, rank, statements[rank].out or []) for rank in dst.ranks}
    present = _whole_tensors(src, given)
    moved = [name for name in _touched_tensors(dst, asked, present) if name in present]
    _check_adapters(src, dst, held[min(src.ranks)], set(moved))
    return _only(src, moved), _only(dst, moved)


def _held_names(statement: Statement) -> list[str]:
    rows = [name for name, _, _ in statement.rows or []]
    return rows + [alias for alias, _ in statement.aliases or []]


def _local_names(layout: Layout, rank: int, names: list[str]) -> set[str]:
    """Those of this rank's local tensors that `names` mean."""
    known = [name for name, _, _ in layout.locals(rank)]
    known += [alias for alias, _ in layout.spec.aliases]
    meant = set(canonical_names(names, known).values())
    return meant | {name for alias, name in layout.spec.aliases if alias in meant}


def _whole_tensors(layout: Layout, given: _Names) -> set[str]:
    """The tensors all of whose pieces lie in tensors that are given."""
    lost = {
        tensor
        for rank in layout.ranks
        for tensor, local, *_ in layout.pieces(rank)
        if local not in given[rank]
    }
    return {name for name, _, _ in layout.spec.tensors} - lost


def _touched_tensors(layout: Layout, asked: _Names, present: set[str]) -> list[str]:
    """The tensors that have a piece in a tensor that is asked for, in order."""
    parts: dict[str, set[str]] = {}
    for rank in layout.ranks:
        for tensor, local, *_ in layout.pieces(rank):
            if local in asked[rank]:
                parts.setdefault(local, set()).add(tensor)
    for local, tensors in parts.items():
        lost = sorted(tensors - present)
        if lost and len(lost) < len(tensors):
            raise UsageError(
                f"{local!r} would lack a part: the model has no {listed(lost)}. Pass it, or leave "
                f"{local!r} out of out."
            )
    touched = set().union(*parts.values())
    return [name for name, _, _ in layout.spec.tensors if name in touched]


def _check_adapters(src: Layout, dst: Layout, held: list[str], moved: set[str]) -> None:
    names = canonical_names(held, [name for name, _, _ in src.spec.tensors])
    left = [name for name in held if names[name] not in moved]
    check_adapters(held, [n for n in held if names[n] in moved], left, dst.text)


def _only(layout: Layout, names: list[str]) -> Layout:
    core = _core.select_tensors(layout.core, names)
    return Layout(core, Spec(core.spec, layout.spec.config))
