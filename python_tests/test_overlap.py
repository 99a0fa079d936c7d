"""Which strided tensors share memory, against the sets of their bytes."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_threads

from hybridengine import Communicator, UsageError, reshard
from hybridengine.overlap import Strided

pytestmark = pytest.mark.threads


def places(each: Strided) -> list[int]:
    """The byte addresses of its elements' first bytes."""
    indices = itertools.product(*map(range, each.shape))
    return [
        each.address
        + each.element_bytes * sum(i * s for i, s in zip(at, each.strides, strict=True))
        for at in indices
    ]


def held_bytes(each: Strided) -> set[int]:
    return {place + i for place in places(each) for i in range(each.element_bytes)}


@st.composite
def tensors(draw) -> Strided:
    dims = draw(st.integers(0, 3))
    sizes = draw(st.lists(st.integers(0, 4), min_size=dims, max_size=dims))
    strides = draw(st.lists(st.integers(0, 7), min_size=dims, max_size=dims))
    width = draw(st.sampled_from([1, 2, 4]))
    return Strided(64 + draw(st.integers(0, 20)), tuple(sizes), tuple(strides), width)


@given(tensors(), tensors())
def test_what_is_shared_is_found_and_nothing_else(one, two):
    assert one.shares(two) == two.shares(one) == bool(held_bytes(one) & held_bytes(two))
    assert one.repeats() == (len(set(places(one))) < len(places(one)))


def test_what_would_take_too_long_counts_as_shared():
    """Whether two lattices meet is hard to tell in general; the search is not without end."""
    steps = (1495644, 1845510, 152086), (520412, 1704736, 318832)
    one = Strided(1 << 20, (41, 35, 40), steps[0], 1)
    two = Strided((1 << 20) + 2, (32, 56, 34), steps[1], 1)
    assert one.shares(two) is True
    assert Strided(0, (3000, 3000), (3000, 2999), 1).repeats() is True


def test_columns_of_one_matrix_are_written_apart():
    """They interleave, and share nothing."""
    full = {name: torch.arange(5.0) + 10 * i for i, name in enumerate("abc")}

    def main(comm: Communicator) -> None:
        board = torch.zeros(5, 3)
        out = {name: board[:, i] for i, name in enumerate("abc")}
        reshard(full, "replicated(2)", "replicated(2)", comm=comm, out=out)
        assert board.equal(torch.stack(list(full.values()), dim=1))
        again = {name: torch.zeros(5) for name in full}
        reshard(out, "replicated(2)", "replicated(2)", comm=comm, out=again)  # and read so
        assert all(again[name].equal(tensor) for name, tensor in full.items())

    run_threads(2, main, transport="loopback")


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (lambda board: board[:, 1], "out tensor '.' and out tensor '.' share memory"),
        (lambda board: board[2:4].flatten()[1:6], "out tensor '.' and out tensor '.' share memory"),
        (lambda board: board.as_strided((5,), (0,)), "out tensor 'b' is expanded"),
        (lambda board: board.as_strided((2, 2), (1, 1), 12), "'b' overlaps itself"),
    ],
)
def test_what_really_overlaps_is_refused(second, expected):
    def main(comm: Communicator) -> None:
        board = torch.zeros(5, 3)
        out = {"a": board[:, 1], "b": second(board)}
        shapes = {name: torch.ones(each.shape) for name, each in out.items()}
        with pytest.raises(UsageError, match=expected):
            reshard(shapes, "hf", "hf", comm=comm, out=out)
        assert board.eq(0).all()

    run_threads(1, main, transport="loopback")
