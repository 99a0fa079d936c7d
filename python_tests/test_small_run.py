"""Runs of a few kilobytes: one exchange of all ranks from the second run on, with the same values
and the same numbers in the report."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
import tiny_models as tiny
import torch
from ranks import Ranks, run_ranks, run_threads

from hybridengine import Communicator, Layout, Resharder, Spec, _core
from hybridengine.resharding.report import Report

SHAPES = {"rows": (7, 33), "odd": (5,), "one": (1,), "none": (0, 3), "scalar": ()}


def full_model(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def move(comm: Any, dtype: torch.dtype | None, strided: bool, verify: bool) -> list[Any]:
    """What each of three runs reports; throws where one gives a wrong byte."""
    model = tiny.fsdp2(full_model(0), 2, comm.rank) if comm.rank < 2 else None
    out = None
    if strided:
        out = {}
        for name, shape in SHAPES.items() if comm.rank in (1, 2) else ():
            out[name] = torch.zeros(*shape, 2, dtype=dtype or torch.float32)[..., 1]
    resharder = Resharder(
        model, "fsdp2(2)", "replicated(2)@1-2", comm=comm, out=out, dtype=dtype, verify=verify
    )
    said = []
    for seed in range(3):
        full = full_model(seed)
        if model is not None:
            for name, shard in tiny.fsdp2(full, 2, comm.rank).items():
                model[name].copy_(shard)
        result = {
            n: torch.empty(t.shape, dtype=t.dtype).copy_(t) for n, t in resharder.run().items()
        }
        expected = {n: t if dtype is None else t.to(dtype) for n, t in full.items()}
        tiny.assert_same(result, expected if comm.rank in (1, 2) else {})
        report = resharder.report
        assert report.received_over_bound == 1.0
        numbers = (report.received_bytes, report.sent_bytes, report.local_bytes, report.pairs)
        said.append((report.shown_buckets, report.buckets_in, numbers))
    return said


@pytest.mark.parametrize("transport", ["loopback", "shm", "cma"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("strided", [False, True])
def test_small_runs_give_the_same_bytes_and_numbers(transport, dtype, strided):
    for said in run_ranks(4, move, dtype, strided, False, transport=transport):
        assert [shown for shown, _, _ in said] == [0, said[1][1], said[2][1]]
        assert said[0][2] == said[1][2] == said[2][2]
    assert said[0][1] == 0  # the last rank is in neither layout, and takes part


def test_what_is_verified_goes_bucket_by_bucket():
    for said in run_ranks(4, move, None, False, True, transport="shm"):
        assert all(shown == 0 for shown, _, _ in said)


def fill_the_page(comm: Any, size: int) -> list[int]:
    spec = Spec.from_tensors([("w", (size,), "uint8")])
    src, dst = Layout.hf().bind(spec), Layout.hf(ranks=[1]).bind(spec)
    model = {"w": torch.arange(size).to(torch.uint8)} if comm.rank == 0 else None
    resharder = Resharder(model, src, dst, comm=comm)
    shown = []
    for _ in range(2):
        result = resharder.run()
        assert comm.rank == 0 or torch.equal(result["w"], torch.arange(size).to(torch.uint8))
        shown.append(resharder.report.shown_buckets)
    return shown


@pytest.mark.parametrize(("beside", "small"), [(3 * 64, True), (3 * 64 - 1, False)])
def test_the_largest_that_fits_is_small_and_one_byte_more_is_not(beside, small):
    """`beside`: room for the headers of three parts."""
    shown = run_ranks(2, fill_the_page, _core.SHOWN_BYTES - beside, transport="shm")[1]
    assert shown == [0, int(small)]


def die_before_the_third_run(comm: Any) -> str:
    spec = Spec.from_tensors([("w", (64,), "float32")])
    src, dst = Layout.hf().bind(spec), Layout.hf(ranks=[1]).bind(spec)
    model = {"w": torch.ones(64)} if comm.rank == 0 else None
    resharder = Resharder(model, src, dst, comm=comm)
    for _ in range(2):
        resharder.run()
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        resharder.run()
    except _core.TransportError as error:
        return str(error)
    return "nothing was raised"


def test_a_rank_that_dies_before_a_small_run_is_named():
    results = Ranks(2, die_before_the_third_run, transport="shm").results(30)
    assert results[1][0] == "ok" and "rank 0" in results[1][1]


def test_a_report_is_built_when_it_is_asked_for(monkeypatch):
    """Once; and by the second run, which looks whether huge pages would help."""
    built: list[int] = []
    build = Report.from_core

    def count(*args, **options) -> Report:
        built.append(threading.get_ident())
        return build(*args, **options)

    monkeypatch.setattr(Report, "from_core", count)

    def main(comm: Communicator) -> tuple[int, ...]:
        resharder = Resharder({"w": torch.ones(4)}, "replicated(2)", "hf@1", comm=comm)
        for _ in range(2):
            resharder.run()
        counts = [built.count(threading.get_ident())]
        for _ in range(3):
            resharder.run()
        counts.append(built.count(threading.get_ident()))
        assert resharder.report is resharder.report
        return *counts, built.count(threading.get_ident())

    assert run_threads(2, main, transport="loopback") == [(1, 1, 2)] * 2
