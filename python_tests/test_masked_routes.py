"""Routes of masked_all_reduce: the same bits on each, one and the same on all ranks."""

from __future__ import annotations

import math

import pytest
import torch
from masked_oracle import same_bits
from ranks import run_threads, thread_outcomes

from hybridengine import Communicator, masked_all_reduce
from hybridengine.collective import link_model

GRANULARITIES = ["element", "row", "tensor"]
ROUTES = ["wire", "dense", "fast"]
SHAPES = [(300, 7), (1000,), (0, 3), (65, 64), ()]


def made(rank: int, dtype: str, granularity: str):
    """Values with what may not leak into a sum behind their masks, and their scores."""
    generator = torch.Generator().manual_seed(rank)
    values = [torch.randn(shape, generator=generator) for shape in SHAPES]
    dims = {"element": None, "row": 1, "tensor": 0}[granularity]
    scores = [torch.rand(each.shape[:dims], generator=generator) for each in values]
    for value, score in zip(values, scores, strict=True):
        while score.dim() < value.dim():
            score = score.unsqueeze(-1)
        value[(score < 0.5).expand(value.shape)] = (math.nan, math.inf, -math.inf)[rank % 3]
    return [each.to(getattr(torch, dtype)) for each in values], scores


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_every_route_gives_the_same_bits(granularity, dtype):
    cases = [
        {"op": op, "fill": fill, "counts": counts}
        for op, fill, counts in (
            ("mean", 0.0, True),
            ("sum", -2.5, False),
            ("mean_world", 3.0, True),
        )
    ]

    def main(comm: Communicator):
        values, scores = made(comm.rank, dtype, granularity)
        return [
            masked_all_reduce(
                values, scores, 0.5, granularity=granularity, comm=comm, route=route, **case
            )
            for case in cases
            for route in ROUTES
        ]

    ranks = run_threads(3, main, transport="loopback")
    for case in range(len(cases)):
        wire, dense, fast = (ranks[0][case * len(ROUTES) + i] for i in range(len(ROUTES)))
        assert (wire.route, dense.route) == ("wire", "dense")
        assert fast.route in ("wire", "dense")
        for results in ranks:
            for other in results[case * len(ROUTES) : (case + 1) * len(ROUTES)]:
                assert all(map(same_bits, wire.values, other.values))
                assert all(not torch.isnan(each.float()).any() for each in other.values)
                if wire.counts is not None:
                    assert all(map(torch.equal, wire.counts, other.counts))


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_in_place_and_strided_on_each_route(granularity, strided, residual):
    def main(comm: Communicator):
        found = []
        for route in ("wire", "dense"):
            (values, *_), (scores, *_) = made(comm.rank, "float32", granularity)
            values = torch.nan_to_num(values, 7.0, 8.0, 9.0)
            values = values.t().contiguous().t() if strided else values
            kept = torch.ones_like(values) if residual else None
            masked_all_reduce(
                values,
                scores,
                0.5,
                granularity=granularity,
                out=values,
                residual=kept,
                comm=comm,
                route=route,
                bucket_bytes=4096,
            )
            found.append((values.contiguous(), kept))
        return found

    for (wire, kept), (dense, also) in run_threads(3, main, transport="loopback"):
        assert same_bits(wire, dense)
        assert kept is None or torch.equal(kept, also)


def test_all_ranks_take_the_route_that_rank_0_has_measured(monkeypatch):
    """By the share of all elements that take part, however they lie on the ranks."""
    monkeypatch.setattr(link_model, "wire_density", lambda *_: 0.3)

    def main(comm: Communicator):
        if comm.rank > 0:  # what others have measured does not count
            monkeypatch.setattr(link_model, "wire_density", lambda *_: 0.3)
        values = torch.ones(64, 16)
        scores = torch.arange(64) / 64 if comm.rank == 0 else torch.zeros(64)
        return [masked_all_reduce(values, scores, t, comm=comm).route for t in (0.5, 0.25)]

    # Half and three quarters of the elements of one rank out of two.
    assert run_threads(2, main, transport="loopback") == [["wire", "dense"]] * 2


def test_dense_sends_everything_and_wire_does_not():
    def main(comm: Communicator):
        values, scores = torch.ones(4096, 64), (torch.arange(4096) % 10 == 0).float()
        return [
            masked_all_reduce(values, scores, 0.5, comm=comm, route=route)
            for route in ("wire", "dense")
        ]

    for wire, dense in run_threads(2, main, transport="loopback"):
        assert wire.wire_bytes == pytest.approx(0.1 * wire.dense_bytes, rel=0.05)
        assert dense.wire_bytes == pytest.approx(dense.dense_bytes, rel=0.01)


def test_a_route_that_there_is_not_and_routes_that_differ():
    def main(comm: Communicator, routes: tuple[str, str]):
        masked_all_reduce(torch.ones(4), torch.ones(4), 0.5, comm=comm, route=routes[comm.rank])

    outcomes = thread_outcomes(2, main, ("fast", "fastest"), transport="loopback")
    assert all("rank 1: route=fastest is not one" in each[2] for each in outcomes)
    outcomes = thread_outcomes(2, main, ("fast", "wire"), transport="loopback")
    assert all("route is fast on rank 0 and wire on rank 1" in each[2] for each in outcomes)
