"""Programs: how one rank's part of a schedule is compiled, the ways that its parts take, and what
is printed of it."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import torch
from ranks import run_ranks

from hybridengine import Layout, LayoutRule, Resharder, Spec, _core
from hybridengine.models.presets import PRESETS

ROWS, COLS = 96, 6144
# Halves of rows become thirds of columns: long at the destination, 8,192 bytes of each row at the
# source. Halves of rows of "whole" stay whole rows.
SHAPES = {"cut": (ROWS, COLS), "whole": (ROWS, COLS), "bias": (ROWS,)}


def columns(spec: Spec, ranks: list[int]) -> Layout:
    """Thirds of the columns of "cut"; thirds of the rows of all others."""
    boxes: dict[int, dict[str, tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for at, rank in enumerate(ranks):
        boxes[rank] = {}
        for name, shape in SHAPES.items():
            dim = 1 if name == "cut" else 0
            step = -(-shape[dim] // len(ranks))
            start, size = [0] * len(shape), list(shape)
            start[dim] = min(at * step, shape[dim])
            size[dim] = min(step, shape[dim] - start[dim])
            boxes[rank][name] = (tuple(start), tuple(size))
    return Layout.from_boxes(spec, boxes, text="columns")


def values(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(s, generator=generator) for n, s in SHAPES.items()}


def part_of(full: dict[str, torch.Tensor], layout: Layout, rank: int) -> dict[str, torch.Tensor]:
    shards = {}
    for tensor, local, start, size, _, _ in layout.pieces(rank):
        shards[local] = full[tensor][
            tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
        ]
    return {name: shard.contiguous() for name, shard in shards.items()}


def move(comm: Any, back: bool, strided: bool) -> tuple[int, int, int, int]:
    """(in place, read, buckets in, staging) of a run in which values are right, three times."""
    spec = Spec.from_tensors([(n, s, "float32") for n, s in SHAPES.items()])
    rows, cut = Layout.fsdp2(2).bind(spec), columns(spec, [2, 3, 4])
    src, dst = (cut, rows) if back else (rows, cut)
    model = part_of(values(0), src, comm.rank)
    out = {n: torch.full_like(t, 9) for n, t in part_of(values(0), dst, comm.rank).items()}
    if strided:
        out = {n: t.new_zeros(*t.shape, 2)[..., 0] for n, t in out.items()}
    resharder = Resharder(model or None, src, dst, comm=comm, out=out, verify=True)
    for seed in range(3):
        for name, shard in part_of(values(seed), src, comm.rank).items():
            model[name].copy_(shard)
        resharder.run()
        for name, shard in part_of(values(seed), dst, comm.rank).items():
            assert torch.equal(out[name], shard), (name, seed)
    report = resharder.report
    assert report.received_over_bound == 1.0
    return (
        report.direct_buckets,
        report.pulled_buckets,
        report.buckets_in,
        report.staging_bytes,
    )


@pytest.mark.parametrize("transport", ["loopback", "shm", "cma"])
@pytest.mark.parametrize("strided", [False, True])
def test_the_source_writes_what_is_short_there_and_long_here(transport, strided):
    """Columns of rows: the destination grants its own places by their addresses."""
    for direct, pulled, buckets, staging in run_ranks(5, move, False, strided, transport=transport)[
        2:
    ]:
        if transport == "shm":
            assert (direct, pulled) == (0, 0) and staging > 0
        elif not strided:
            assert direct > 0 and pulled > 0 and direct + pulled == buckets and staging == 0


@pytest.mark.parametrize("transport", ["loopback", "cma"])
def test_the_destination_reads_what_is_long_there_and_short_here(transport):
    for direct, pulled, buckets, staging in run_ranks(5, move, True, False, transport=transport)[
        :2
    ]:
        assert (direct, pulled, staging) == (0, buckets, 0)


def ways_that_change(comm: Any) -> list[tuple[int, int]]:
    """The same resharder fills fresh memory that peers map and, once there is none, memory that
    they read: a source that was told of final places in the run before hears otherwise."""
    spec = Spec.from_tensors([("w", (64, 1024), "float32")])
    src, dst = Layout.hf().bind(spec), Layout.hf(ranks=[1]).bind(spec)
    model = {"w": torch.zeros(64, 1024)} if comm.rank == 0 else None
    resharder = Resharder(model, src, dst, comm=comm)
    shared, ways = resharder._fresh._memory, []
    for run in range(6):
        resharder._fresh._memory = None if run in (2, 3, 4) else shared
        if model is not None:
            model["w"].fill_(run)
        result = resharder.run()
        assert comm.rank == 0 or bool((result["w"] == run).all())
        ways.append((resharder.report.direct_buckets, resharder.report.pulled_buckets))
    return ways


def test_ways_may_change_from_run_to_run():
    """Of what was written in place the source does not say again that it may be read: the next run
    goes through staging, and the one after it is read."""
    ways = run_ranks(2, ways_that_change, transport="cma")[1]
    assert ways == [(1, 0), (1, 0), (0, 0), (0, 1), (0, 1), (1, 0)]


def strides_that_change(comm: Any) -> None:
    """A source whose memory is laid out anew between runs: the program is compiled again."""
    spec = Spec.from_tensors([("w", (64, 1024), "float32")])
    src, dst = Layout.hf().bind(spec), Layout.hf(ranks=[1]).bind(spec)
    holder = torch.nn.Module()
    holder.w = torch.nn.Parameter(torch.ones(64, 1024))
    out = {"w": torch.zeros(64, 1024)} if comm.rank == 1 else {}
    resharder = Resharder(holder if comm.rank == 0 else None, src, dst, comm=comm, out=out)
    full = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    for run in range(4):
        holder.w.data = (full + run).T.contiguous().T if run % 2 else full + run
        resharder.run()
        assert comm.rank == 0 or torch.equal(out["w"], full + run)


@pytest.mark.parametrize("transport", ["shm", "cma"])
def test_sources_may_be_strided_in_another_way_in_the_next_run(transport):
    run_ranks(2, strides_that_change, transport=transport)


def dump(comm: Any, folder: str, kind: str | None) -> None:
    os.environ["HYBRIDENGINE_DUMP"] = folder
    model = {"w": torch.ones(32, 1024), "v": torch.ones(2 - comm.rank)}
    Resharder(model, "fsdp2(2)", "replicated(2)", comm=comm, dtype=kind)


def test_programs_are_printed(tmp_path):
    run_ranks(2, dump, str(tmp_path / "dump"), None, transport="cma")
    names = sorted(path.name for path in (tmp_path / "dump").iterdir())
    both = [f"{kind}.{rank}.txt" for kind in ("program", "schedule") for rank in range(2)]
    assert names == sorted(["plan.txt", *both])
    text = (tmp_path / "dump" / "program.1.txt").read_text()
    assert text.startswith("program of rank 1: fsdp2(2) -> replicated(2)\n")
    assert "2 source tensors, 2 destination tensors" in text
    bucket = r"bucket \d+/\d+, round \d+, first tensor 'w'"
    assert "receives 131080 bytes in 1 part\n" in text
    assert re.search(
        f"from rank 0: {bucket}: 131080 bytes in 2 copies, read where it lies there\n", text
    )
    assert "sends 131076 bytes in 1 part\n" in text
    assert re.search(
        f"to rank 0: {bucket}: 131076 bytes in 2 copies, read from here by the receiver\n", text
    )
    assert "copies 131076 bytes of its own, in 2 copies\n" in text
    run_ranks(2, dump, str(tmp_path / "half"), "bfloat16", transport="cma")
    text = (tmp_path / "half" / "program.1.txt").read_text()
    assert re.search(": 65540 bytes in 2 copies, converted on the way, through a slot\n", text)


def test_a_program_says_what_is_combined():
    """A reduction of two ranks, of which each combines a half and sends it on."""
    spec = Spec.from_tensors([("w", (64, 1024), "float32")])
    src = LayoutRule.parse("replicated(2)").partial("mean").bind(spec)
    dst = LayoutRule.parse("replicated(2)").bind(spec)
    schedule = _core.make_schedule(_core.make_plan(src.core, dst.core), 0, 1 << 20)
    tensors = [torch.empty(64, 1024)]
    text = _core.Routine(schedule, readable=[0, 1]).program(tensors, tensors)
    for words in (
        r"from rank 1: .*'w': 131072 bytes in 1 copy, a contribution to fold 0, .*through a slot",
        r"from rank 1: .*'w': 131072 bytes in 1 copy, the result of a fold there, read where",
        r"to rank 1: .*'w': 131072 bytes in 1 copy, a contribution to a fold there, ",
        r"to rank 1: .*'w': 131072 bytes in 1 copy, the result of fold 0, read from here",
        r"fold 0: combines 2 contributions, in rank order, in 1 box; a slot holds 131072 bytes",
    ):
        assert re.search(words, text), text


def bytes_by_way(text: str) -> dict[str, int]:
    """Of what a rank receives, by the last words of its line."""
    ways: dict[str, int] = {}
    for line in text.splitlines():
        if found := re.search(r"from rank .*: (\d+) bytes in .*, (\w+)[^,]*$", line):
            ways[found[2]] = ways.get(found[2], 0) + int(found[1])
    return ways


@pytest.mark.parametrize(
    ("model", "dst", "most_packed"),
    [("smollm2-135m", "vllm(tp=3)", 0.34), ("qwen2.5-0.5b", "vllm(tp=2)", 0.16)],
)
def test_a_real_model_is_packed_only_where_runs_are_short(model, dst, most_packed):
    """The way goes by tensor: in every bucket there are some with short rows, whose mean with the
    others would have all of it copied twice."""
    spec = Spec.from_config(PRESETS[model])
    src, into = (LayoutRule.parse(text).bind(spec) for text in ("fsdp2(2)", dst))
    plan = _core.make_plan(src.core, into.core)
    ways: dict[str, int] = {}
    for rank in into.ranks:
        schedule = _core.make_schedule(plan, rank)
        tensors = [
            [torch.empty(shape, dtype=torch.bfloat16) for _, shape, _ in layout.locals(rank)]
            for layout in (src, into)
        ]
        routine = _core.Routine(schedule, readable=[0, 1])
        for way, num_bytes in bytes_by_way(routine.program(*tensors)).items():
            ways[way] = ways.get(way, 0) + num_bytes
    received = sum(row["received_bytes"] for row in plan.certificate.ranks)
    assert set(ways) <= {"through", "read", "written"} and sum(ways.values()) == received
    assert ways["through"] <= most_packed * received
