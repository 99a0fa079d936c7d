"""Statistics over trusted values of all ranks, and scores of blocks of rows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import run_ranks, run_threads, thread_outcomes

from hybridengine import Communicator, block_scores, masked_all_reduce, masked_mean_var


def over_ranks(parts: list[torch.Tensor], keep: list[torch.Tensor | None]):
    return run_threads(
        len(parts),
        lambda comm: masked_mean_var(parts[comm.rank], keep[comm.rank], comm),
        transport="loopback",
    )


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    offset=st.sampled_from([0.0, 1e8, -1e8]),
    seed=st.integers(0, 1000),
)
def test_against_the_whole(sizes, offset, seed):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(n, generator=generator, dtype=torch.float64) + offset for n in sizes]
    keep = [torch.rand(n, generator=generator) < 0.7 for n in sizes]
    trusted = torch.cat([part[kept] for part, kept in zip(parts, keep, strict=True)])
    found = over_ranks(parts, keep)
    assert len(set(found)) == 1
    assert found[0].count == len(trusted)
    if len(trusted):
        # The offset is taken off exactly, so that the oracle has no rounding of its own.
        assert found[0].mean - offset == pytest.approx(float((trusted - offset).mean()), abs=1e-7)
        variance = float((trusted - offset).var(correction=0))
        assert found[0].variance == pytest.approx(variance, rel=1e-6, abs=1e-12)


def b32(comm: Communicator) -> list:
    def call(values: list[float], keep=None):
        mine = torch.tensor(values)[comm.rank :: comm.world]
        kept = None if keep is None else torch.tensor(keep)[comm.rank :: comm.world]
        result = masked_mean_var(mine, kept, comm)
        return result.count, result.mean, result.variance

    spread = [1e8 + 8 * (i % 3) for i in range(30)]
    return [
        call([0.3] * 6 + [0.9], [True] * 6 + [False]),
        call([0.7] * 4),
        call([0.7]),
        call([0.3] * 13),
        call(spread),
        call([0.5] * 4, [False] * 4),
    ]


@pytest.mark.parametrize("transport", ["shm", "cma"])
def test_b32_equal_rewards_have_no_variance(transport):
    """Not a remainder that passes as a spread, and never NaN."""
    ranks = run_ranks(2, b32, transport=transport)
    assert ranks[0] == ranks[1]
    point3, point7 = (torch.tensor(each).item() for each in (0.3, 0.7))
    assert ranks[0][:4] == [(6, point3, 0.0), (4, point7, 0.0), (1, point7, 0.0), (13, point3, 0.0)]
    assert ranks[0][4] == (30, 1e8 + 8, 128 / 3)
    assert ranks[0][5] == (0, 0.0, 0.0)


def test_what_is_not_kept_is_not_looked_at():
    parts = [torch.tensor([1.0, math.nan]), torch.tensor([3.0, math.inf])]
    found = over_ranks(parts, [torch.tensor([True, False])] * 2)
    assert found[0] == found[1]
    assert (found[0].count, found[0].mean, found[0].variance) == (2, 2.0, 1.0)


def test_shapes_that_differ_are_refused_on_all_ranks():
    def main(comm: Communicator):
        keep = torch.ones(3 if comm.rank == 1 else 4, dtype=torch.bool)
        return masked_mean_var(torch.ones(4), keep, comm)

    outcomes = thread_outcomes(3, main, transport="loopback")
    assert {each[1] for each in outcomes} == {"UsageError"}
    assert {each[2] for each in outcomes} == {"keep is [3], values are [4]. Give one shape."}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("shape", "rows"), [((10, 6), 4), ((8, 2, 3), 8), ((5,), 2), ((3, 4), 9)])
def test_block_scores(dtype, shape, rows):
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    gradient = gradient.to(getattr(torch, dtype))
    found = block_scores(gradient, rows)
    assert found.dtype == torch.float32
    for row in range(shape[0]):
        begin = row // rows * rows
        wanted = gradient[begin : begin + rows].double().abs().mean()
        assert float(found[row]) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), ()])
def test_block_scores_of_little(shape):
    assert block_scores(torch.full(shape, -2.0), 2).shape == shape[:1]


def test_block_thresholded_gradients():
    """Only blocks with a large mean travel; the rest is remembered and comes later."""

    def main(comm: Communicator):
        gradient = torch.full((8, 4), 0.25)
        gradient[4 * comm.rank : 4 * comm.rank + 4] = 2.0
        residual = torch.zeros_like(gradient)
        steps = []
        for _ in range(4):
            result = masked_all_reduce(
                gradient,
                block_scores(gradient + residual, 4),
                1.0,
                op="sum",
                residual=residual,
                comm=comm,
            )
            steps.append((result.values[:, 0].tolist(), result.counts.tolist()))
        return steps

    steps = run_threads(2, main, transport="loopback")
    assert steps[0] == steps[1]
    assert steps[0][:3] == [([2.0] * 8, [1] * 8)] * 3
    assert steps[0][3] == ([3.0] * 8, [2] * 8)
