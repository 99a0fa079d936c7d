"""Boxes and places through layouts by hand: what a layout must cover and may claim."""

import math

import blobs
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layouts import layouts_by_hand, rules, specs

from hybridengine import Spec, UsageError, _core


def layout(shape, local_shape, pieces, dtype="int8", local_dtype=None, ranks=(0,)):
    """One tensor 'w' on rank 0 in local tensor 'x'; pieces are (start, size, offset, strides)."""
    spec = Spec.from_tensors([("w", shape, dtype)])
    rows = [("w", 0, "x", *piece) for piece in pieces]
    locals_ = [(0, "x", local_shape, local_dtype or dtype)]
    return _core.Layout("by hand", spec.core, list(ranks), locals_, rows)


@settings(max_examples=150)
@given(st.data())
def test_layouts_by_hand_cover_and_claim_as_they_say(data):
    spec = data.draw(specs())
    made = data.draw(layouts_by_hand(spec))
    made.check()
    read = blobs.read_layout(made.save())
    memory = oracle.Memory(read, oracle.first_ids(read.spec)).fill()
    assert all(writes.max(initial=0) <= 1 for writes in memory.writes)
    held = set().union(*(memory.held(rank) for rank in read.ranks))
    assert held == set(range(oracle.first_ids(read.spec)[""]))


@given(st.data())
def test_saved_layouts_are_equal_layouts(data):
    spec = data.draw(specs())
    core = data.draw(
        st.one_of(layouts_by_hand(spec), rules().map(lambda rule: rule.bind(spec)))
    ).core
    loaded = _core.Layout.load(core.save())
    assert loaded == core and loaded.save() == core.save() and loaded.digest() == core.digest()
    assert blobs.write_layout(blobs.read_layout(core.save())) == core.save()
    assert [loaded.locals(rank) for rank in loaded.ranks] == [core.locals(r) for r in core.ranks]
    assert [loaded.pieces(rank) for rank in loaded.ranks] == [core.pieces(r) for r in core.ranks]


def claimed_twice(pieces) -> bool:
    """By counting."""
    counts = np.zeros(4096, dtype=int)
    for _, size, offset, strides in pieces:
        np.add.at(counts, oracle.grid((0,) * len(size), size, strides, offset), 1)
    return bool((counts > 1).any())


@st.composite
def strided_pieces(draw, ndim):
    """Pieces at places of no pattern; they may overlap themselves."""
    size = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    strides = tuple(draw(st.integers(1, 12)) for _ in range(ndim))
    return (0,) * ndim, size, draw(st.integers(0, 40)), strides


@settings(max_examples=400)
@given(
    st.integers(1, 4).flatmap(lambda ndim: st.lists(strided_pieces(ndim), min_size=1, max_size=4))
)
def test_claims_are_judged_as_by_counting(pieces):
    shape = tuple(max(piece[1][dim] for piece in pieces) for dim in range(len(pieces[0][1])))
    whole = ((0,) * len(shape), shape, 2048, contiguous(shape))  # covers, away from the others
    try:
        layout(shape, (4096,), [*pieces, whole])
        found = False
    except UsageError as error:
        assert "claimed twice" in str(error)
        found = True
    assert found == claimed_twice(pieces)


def contiguous(shape) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([((0, 0), (2, 4), 0, (4, 1)), ((2, 0), (2, 4), 8, (4, 1))], None),
        ([((0, 0), (4, 4), 0, (1, 4))], None),  # transposed
        ([((0, 0), (4, 2), 0, (4, 1)), ((0, 2), (4, 2), 2, (4, 1))], None),  # columns
        ([((0, 0), (4, 2), 0, (4, 1)), ((0, 2), (4, 2), 1, (4, 1))], "claimed twice"),
        ([((0, 0), (4, 2), 0, (2, 1)), ((0, 2), (4, 2), 7, (2, 1))], "claimed twice"),
        ([((0, 0), (4, 4), 0, (3, 1))], "claimed twice"),  # rows overlap each other
        ([((0, 0), (4, 4), 0, (4, 0))], "does not lie within"),
        ([((0, 0), (4, 4), 0, (-4, 1))], "does not lie within"),
        ([((0, 0), (4, 4), 1, (4, 1))], "does not lie within"),
        ([((0, 0), (4, 4), -1, (4, 1))], "does not lie within"),
        ([((0, 0), (4, 4), 0, (5, 1))], "does not lie within"),
        ([((0, 0), (4, 4), 2**62, (2**62, 2**62))], "does not lie within"),
        ([((0, 0), (2, 4), 0, (4, 1))], "no rank holds"),
        ([((0, 0), (4, 3), 0, (4, 1))], "no rank holds"),
        ([((0, 0), (4, 2), 0, (4, 1)), ((0, 3), (4, 1), 3, (4, 1))], "no rank holds"),
        ([((0, 0), (5, 4), 0, (1, 1))], "outside"),
        ([((1, 0), (4, 4), 0, (4, 1))], "outside"),
        ([((-1, 0), (4, 4), 0, (4, 1))], "outside"),
        ([((0,), (4,), 0, (1,))], "outside"),
        ([], "no rank holds"),
    ],
)
def test_what_a_layout_may_not_be(pieces, expected):
    if expected is None:
        layout((4, 4), (4, 4), pieces)
        return
    with pytest.raises(UsageError, match=expected):
        layout((4, 4), (4, 4), pieces)


def test_claims_in_a_large_tensor_are_judged_without_marking_elements():
    """Two interleaved row groups of a tensor that no bitmap should hold."""
    rows, columns = 2**20, 2**12
    half = (rows // 2, columns)
    pieces = [
        ((0, 0), half, 0, (2 * columns, 1)),
        ((rows // 2, 0), half, columns, (2 * columns, 1)),
    ]
    layout((rows, columns), (rows * columns,), pieces)
    shifted = [pieces[0], (*pieces[1][:2], columns - 1, pieces[1][3])]
    with pytest.raises(UsageError, match="claimed twice"):
        layout((rows, columns), (rows * columns,), shifted)


def test_element_types_agree():
    whole = [((0,), (4,), 0, (1,))]
    with pytest.raises(UsageError, match="int8"):
        layout((4,), (4,), whole, dtype="int8", local_dtype="uint8")


def test_ranks_and_names_must_exist():
    whole = [((0,), (4,), 0, (1,))]
    with pytest.raises(UsageError):
        layout((4,), (4,), whole, ranks=(1,))
    with pytest.raises(UsageError):
        layout((4,), (4,), whole, ranks=(0, 0))
    with pytest.raises(UsageError):
        layout((4,), (4,), whole, ranks=(-1, 0))
    with pytest.raises(UsageError):
        layout((1,) * 7, (1,), [])


@pytest.mark.parametrize("shape", [(2**63 - 1, 2), (2**32, 2**32), (2**62,), (2**21, 2**21, 2**21)])
def test_more_bytes_than_63_bits_count_are_refused(shape):
    with pytest.raises(UsageError, match="63 bits"):
        Spec.from_tensors([("w", shape, "float64")])


def test_the_sum_of_all_tensors_is_counted_too():
    half = 2**62
    with pytest.raises(UsageError, match="63 bits"):
        Spec.from_tensors([("a", (half,), "int8"), ("b", (half,), "int8")])
    spec = Spec.from_tensors([("a", (half,), "int8")])
    assert spec.num_bytes == half
    locals_ = [(rank, "a", (half,), "int8") for rank in range(2)]
    pieces = [("a", rank, "a", (0,), (half,), 0, (1,)) for rank in range(2)]
    with pytest.raises(UsageError, match="63 bits"):
        _core.Layout("by hand", spec.core, [0, 1], locals_, pieces)
