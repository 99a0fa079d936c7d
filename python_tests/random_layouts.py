"""Random specs and layouts for property tests, small enough for an oracle that counts elements.

By hand: each tensor is cut into boxes at random, each box goes to some ranks, and each rank stores
its boxes in local tensors of its own making: alone or fused with others, with dims in another
order, with gaps between rows, at an offset.
"""

import math
from dataclasses import dataclass

from hypothesis import strategies as st

from hybridengine import Layout, LayoutRule, Spec, _core

BYTES = _core.dtype_table()
DTYPES = list(BYTES)
FLOATS = [name for name in DTYPES if "float" in name]
WORLD = 8


@dataclass(frozen=True)
class Stored:
    """A box of a tensor as one rank stores it: its shape in memory, with room to spare."""

    tensor: str
    dtype: str
    start: tuple[int, ...]
    size: tuple[int, ...]
    order: tuple[int, ...]  # dims from the slowest to the fastest
    slack: tuple[int, ...]  # unused elements behind each dim


@st.composite
def specs(draw, max_tensors=5, max_elems=200, max_size=9, dtypes=DTYPES):
    tensors = []
    for number in range(draw(st.integers(1, max_tensors))):
        shape: list[int] = []
        for _ in range(draw(st.integers(0, 6))):
            limit = max_elems // max(1, math.prod(max(n, 1) for n in shape))
            shape.append(draw(st.integers(0, min(limit, max_size))))
        tensors.append((f"layers.{number}.weight", tuple(shape), draw(st.sampled_from(dtypes))))
    return Spec.from_tensors(tensors)


@st.composite
def rank_sets(draw, count, world=WORLD):
    return draw(st.permutations(range(world)))[:count]


@st.composite
def rules(draw, world=WORLD):
    """A rule for any spec: fsdp2 with replicas, replicated or hf, on any ranks."""
    kind = draw(st.sampled_from(["fsdp2", "replicated", "hf"]))
    if kind == "hf":
        return Layout.hf(ranks=draw(rank_sets(1, world)))
    n = draw(st.integers(1, world))
    if kind == "replicated":
        return Layout.replicated(n, ranks=draw(rank_sets(n, world)))
    replicas = draw(st.integers(1, world // n))
    return Layout.fsdp2(n, replicas=replicas, ranks=draw(rank_sets(n * replicas, world)))


def cut_somewhere(draw, start, size, depth):
    """Disjoint boxes that cover a box, by cutting it in two again and again."""
    dims = [dim for dim, count in enumerate(size) if count > 1]
    if depth == 0 or not dims or draw(st.booleans()):
        return [(start, size)]
    dim = draw(st.sampled_from(dims))
    at = draw(st.integers(1, size[dim] - 1))
    low = (*size[:dim], at, *size[dim + 1 :])
    high = (*size[:dim], size[dim] - at, *size[dim + 1 :])
    moved = (*start[:dim], start[dim] + at, *start[dim + 1 :])
    parts = cut_somewhere(draw, start, low, depth - 1)
    return parts + cut_somewhere(draw, moved, high, depth - 1)


@st.composite
def layouts_by_hand(draw, spec, world=WORLD):
    """A layout of `spec` that no rule makes."""
    ranks = sorted(draw(rank_sets(draw(st.integers(1, min(world, 5))), world)))
    stored: dict[int, list[Stored]] = {rank: [] for rank in ranks}
    for name, shape, dtype in spec.tensors:
        for _ in range(draw(st.integers(1, 2))):  # a second cut overlaps the first in any way
            for start, size in cut_somewhere(draw, (0,) * len(shape), shape, 3):
                for rank in draw(st.sets(st.sampled_from(ranks), min_size=1, max_size=3)):
                    stored[rank].append(_stored(draw, name, dtype, start, size))
    locals_, pieces = [], []
    for rank in ranks:
        _place(draw, rank, stored[rank], locals_, pieces)
    return Layout(_core.Layout("by hand", spec.core, ranks, locals_, pieces), spec)


def _stored(draw, name, dtype, start, size) -> Stored:
    dims = range(len(size))
    order = tuple(draw(st.permutations(dims)))
    slack = tuple(draw(st.sampled_from([0, 0, 0, 1, 3])) for _ in dims)
    return Stored(name, dtype, start, size, order, slack)


def _place(draw, rank, stored, locals_, pieces) -> None:
    """Puts boxes of one dtype behind each other into flat local tensors, or keeps them alone."""
    shared: dict[str, int] = {}  # elements of the fused local tensor, by dtype
    for number, each in enumerate(stored):
        strides, elems = _strides(each)
        if draw(st.booleans()):
            name, offset = f"alone.{number}", 0
            locals_.append((rank, name, _shape(each), each.dtype))
        else:
            name = f"fused.{each.dtype}"
            offset = shared.get(each.dtype, 0) + draw(st.integers(0, 2))
            shared[each.dtype] = offset + elems
        pieces.append((each.tensor, rank, name, each.start, each.size, offset, strides))
    for dtype, elems in shared.items():
        locals_.append((rank, f"fused.{dtype}", (elems + draw(st.integers(0, 2)),), dtype))


def _shape(each: Stored) -> tuple[int, ...]:
    return tuple(each.size[dim] + each.slack[dim] for dim in each.order)


def _strides(each: Stored) -> tuple[tuple[int, ...], int]:
    """Strides per dim of the tensor, and the elements of the whole memory."""
    strides, elems = [0] * len(each.size), 1
    for dim in reversed(each.order):
        strides[dim] = elems
        elems *= max(1, each.size[dim] + each.slack[dim])
    return tuple(strides), elems


@st.composite
def layouts(draw, spec, world=WORLD):
    if draw(st.booleans()):
        return draw(layouts_by_hand(spec, world))
    return draw(rules(world)).bind(spec)


@st.composite
def pairs(draw, world=WORLD, **options):
    """A source and a destination layout of one spec; the destination may convert."""
    spec = draw(specs(**options))
    src = draw(layouts(spec, world))
    converted = draw(st.sampled_from([None, None, *FLOATS]))
    return src, draw(layouts(spec if converted is None else spec.with_dtype(converted), world))


def bind(text: str, spec: Spec) -> _core.Layout:
    return LayoutRule.parse(text).bind(spec).core
