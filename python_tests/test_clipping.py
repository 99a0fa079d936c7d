"""The norm over pieces on several ranks, and clipping by it."""

from __future__ import annotations

import math

import pytest
import torch
from ranks import run_threads

from hybridengine import Communicator
from hybridengine.two_step.clipping import clip, global_norm, norm_of, sums_of_squares


def test_the_norm_of_pieces_on_every_rank():
    """One rank has none; the sum is exact where squares are."""

    def main(comm: Communicator) -> float:
        pieces = [[], [torch.tensor([3.0])], [torch.zeros(0), torch.tensor([0.0, -4.0])]]
        return global_norm(comm, pieces[comm.rank])

    assert run_threads(3, main, transport="loopback") == [5.0] * 3


def test_small_gradients_beside_a_large_one():
    """In float32 the small ones would be lost, and in float64 added one by one as well."""
    pieces = [torch.tensor([1e8]), *(torch.tensor([1.0]) for _ in range(64))]
    assert norm_of(sums_of_squares(pieces)) == math.sqrt(10**16 + 64)


def test_blocks_are_of_fixed_size():
    assert sums_of_squares([torch.ones((1 << 16) + 1)]) == [float(1 << 16), 1.0]


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite(value):
    assert not math.isfinite(norm_of(sums_of_squares([torch.tensor([1.0, value])])))


@pytest.mark.parametrize("factor", [1, 1e20, 1e-30])
def test_squares_beyond_float32(factor):
    piece = torch.full((4,), float(factor))
    assert norm_of(sums_of_squares([piece])) == pytest.approx(2 * float(piece[0]), rel=1e-12)


def test_clipping_as_torch_does_it():
    values = torch.randn(57, generator=torch.Generator().manual_seed(0))
    for max_norm in (0.1, 3.0, 1e3):
        ours, theirs = values.clone(), torch.nn.Parameter(torch.zeros(57))
        theirs.grad = values.clone()
        norm = norm_of(sums_of_squares([ours]))
        clip([ours], norm, max_norm)
        torch.testing.assert_close(torch.nn.utils.clip_grad_norm_([theirs], max_norm).item(), norm)
        torch.testing.assert_close(ours, theirs.grad)
        assert ours.equal(values) == (max_norm > norm)
