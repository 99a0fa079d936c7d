"""update: new values from the ranks that own them into the tensors of training and generation.

Step two of a two-step update. One plan carries both; what generation can copy from a training
tensor of the same rank is copied there and does not travel again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import hybridengine.tensors as memory
from hybridengine import _core
from hybridengine.comm import Communicator
from hybridengine.layouts.layout import Layout
from hybridengine.resharding.report import Report
from hybridengine.resharding.resharder import Resharder


class _Box(NamedTuple):
    """A box of a logical tensor in a local tensor."""

    local: str
    start: tuple[int, ...]
    size: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]

    def within(self, start: tuple[int, ...]) -> int:
        """The offset of the element at `start`."""
        steps = (a - b for a, b in zip(start, self.start, strict=True))
        return self.offset + sum(n * stride for n, stride in zip(steps, self.strides, strict=True))


class _Copy(NamedTuple):
    """From a training tensor to a generation tensor of this rank."""

    src: str
    src_offset: int
    src_strides: tuple[int, ...]
    dst: Any
    size: tuple[int, ...]


class Update:
    """`masters` are this rank's pieces in `owners`; `training` and `generation` its local tensors
    in `train` and `gen`."""

    def __init__(
        self,
        masters: Mapping[str, Any],
        training: Mapping[str, Any],
        generation: Mapping[str, Any],
        layouts: tuple[Layout, Layout, Layout],
        comm: Communicator,
    ) -> None:
        owners, train, gen = layouts
        cores = _core.make_update(owners.core, train.core, gen.core)
        src, dst = Layout(cores[0]), Layout(cores[1])
        self._training = training
        self._converted: dict[tuple[str, str], tuple[Any, Any]] = {}
        sources = {
            name: self._source(masters[name.split(":", 1)[1]], name, dtype)
            for name, _, dtype in src.locals(comm.rank)
        }
        tensors = {f"training:{name}": each for name, each in training.items()}
        tensors |= {f"generation:{name}": each for name, each in generation.items()}
        self._copies = _find_copies(train, gen, comm.rank, generation)
        self._resharder = Resharder(
            sources if comm.rank in src.ranks else None,
            src,
            dst,
            comm=comm,
            out={name: tensors[name] for name, _, _ in dst.locals(comm.rank)},
        )

    def _source(self, master: Any, name: str, dtype: str) -> Any:
        """The piece as it travels: the master itself, or a copy in another type."""
        if memory.dtype_name(master.dtype) == dtype:
            return master
        key = (name.split(":", 1)[1], dtype)
        if key not in self._converted:
            piece = memory.allocate(tuple(master.shape), dtype)
            self._converted[key] = (piece, master)
        return self._converted[key][0]

    def run(self) -> None:
        for piece, master in self._converted.values():
            piece.copy_(master)
        self._resharder.run()
        for copy in self._copies:
            source = self._training[copy.src].detach().contiguous()
            copy.dst.copy_(memory.view(source, copy.size, copy.src_strides, copy.src_offset))

    @property
    def report(self) -> Report:
        assert self._resharder.report is not None
        return self._resharder.report


def _find_copies(
    train: Layout, gen: Layout, rank: int, generation: Mapping[str, Any]
) -> list[_Copy]:
    """What make_update() leaves to be copied on this rank."""
    types = {name: dtype for name, _, dtype in train.spec.tensors}
    exact = {name for name, _, dtype in gen.spec.tensors if types[name] in (dtype, "float32")}
    held: dict[str, list[_Box]] = {}
    for tensor, local, start, size, offset, strides in train.pieces(rank):
        box = _Box(local, start, size, offset, strides)
        held.setdefault(tensor, []).append(box)
    copies = []
    for tensor, local, begin, extent, offset, strides in gen.pieces(rank):
        into = _Box(local, begin, extent, offset, strides)
        for source in held.get(tensor, []) if tensor in exact else []:
            start, size = _common(source, into)
            if 0 not in size:
                target = memory.view(generation[into.local], size, into.strides, into.within(start))
                copies.append(
                    _Copy(source.local, source.within(start), source.strides, target, size)
                )
    return copies


def _common(a: _Box, b: _Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Start and size of what two boxes have in common."""
    start = tuple(map(max, a.start, b.start))
    ends = (min(x + n, y + m) for x, n, y, m in zip(a.start, a.size, b.start, b.size, strict=True))
    return start, tuple(max(0, end - begin) for end, begin in zip(ends, start, strict=True))
