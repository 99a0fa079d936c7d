"""The three ways of a bucket: through staging, written in place, read where it lies.

Every way must give the same bytes; which one was taken shows in the staging that a run needed.
"""

from __future__ import annotations

import gc
import os
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models as tiny
import torch
from ranks import run_ranks

import hybridengine
from hybridengine import Layout, LayoutRule, Resharder, Spec, _core

# Long stretches (read where they lie) and short ones (never read).
SHAPES = {"long": (256, 512), "uneven": (7, 4099), "short": (64, 5), "one": (1,), "none": (0, 3)}


def full_model(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, generator=generator)
        for name, shape in SHAPES.items()
    }


def shard_of(full: dict[str, torch.Tensor], layout: Layout, rank: int) -> dict[str, torch.Tensor]:
    """What `rank` holds under a layout that keeps names and cuts dim 0."""
    shards = {name: torch.empty(shape, dtype=torch.int32) for name, shape, _ in layout.locals(rank)}
    for tensor, local, start, size, _, _ in layout.pieces(rank):
        box = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
        shards[local].copy_(full[tensor][box])
    return shards


def move(comm: Any, source_kind: str, out_kind: str, runs: int) -> list[tuple[int, ...]]:
    """(buckets in, written in place, read) of each run; throws where one gives a wrong byte."""
    spec = Spec.from_tensors([(name, shape, "int32") for name, shape in SHAPES.items()])
    src, dst = Layout.fsdp2(2).bind(spec), Layout.fsdp2(3, ranks=[1, 2, 3]).bind(spec)
    model = shard_of(full_model(0), src, comm.rank) if comm.rank < 2 else None
    if source_kind == "strided" and model is not None:
        model = {name: t.new_zeros(*t.shape, 2)[..., 0] for name, t in model.items()}
    rows = dst.locals(comm.rank)
    out = None
    if out_kind == "torch":
        out = {name: torch.full(shape, 7, dtype=torch.int32) for name, shape, _ in rows}
    if out_kind == "ours":
        out = hybridengine.empty(dst, comm.rank)
    resharder = Resharder(model, src, dst, comm=comm, out=out, verify=True, bucket_bytes=100_000)
    ways = []
    for seed in range(runs):
        full = full_model(seed)
        for name, shard in shard_of(full, src, comm.rank).items() if model is not None else ():
            model[name].copy_(shard)
        result = resharder.run()
        for name, shard in shard_of(full, dst, comm.rank).items() if rows else ():
            assert torch.equal(result[name], shard), (name, seed)
        report = resharder.report
        ways.append((report.buckets_in, report.direct_buckets, report.pulled_buckets))
        assert report.received_over_bound == 1.0
        assert report.verified_buckets == report.buckets_in
        assert (report.staging_bytes == 0) == (sum(ways[-1][1:]) == report.buckets_in)
    return ways


@pytest.mark.parametrize("transport", ["loopback", "shm", "cma"])
@pytest.mark.parametrize("source_kind", ["contiguous", "strided"])
@pytest.mark.parametrize("out_kind", ["fresh", "torch", "ours"])
def test_every_way_gives_the_same_bytes(transport, source_kind, out_kind):
    results = run_ranks(4, move, source_kind, out_kind, 3, transport=transport)
    assert results[0] == [(0, 0, 0)] * 3  # no destination
    for buckets, direct, pulled in results[2] + results[3]:
        assert buckets >= 2
        assert direct == (0 if out_kind == "torch" else buckets)
        reads = out_kind == "torch" and source_kind == "contiguous" and transport != "shm"
        assert (pulled > 0) == reads


def convert(comm: Any, kind: str) -> list[tuple[int, int, int]]:
    """(buckets in, written in place, staging) of each run; throws on a wrong value."""
    full = {"w": torch.arange(96 * 1024.0).reshape(96, 1024) / 7, "v": torch.arange(5.0) / 3}
    expected = {name: tensor.to(getattr(torch, kind)) for name, tensor in full.items()}
    model = None
    if comm.rank < 2:
        model = {n: t.chunk(2)[comm.rank].clone() for n, t in full.items()}
    resharder = Resharder(model, "fsdp2(2)", "replicated(2)@1-2", comm=comm, dtype=kind)
    ways = []
    for _ in range(2):
        result = resharder.run()
        for name, tensor in expected.items() if comm.rank > 0 else ():
            assert torch.equal(result[name], tensor), name
        report = resharder.report
        ways.append((report.buckets_in, report.direct_buckets, report.staging_bytes))
    return ways


@pytest.mark.parametrize("transport", ["loopback", "shm", "cma"])
@pytest.mark.parametrize("kind", ["bfloat16", "float64"])
def test_what_is_converted_goes_straight_into_mapped_memory(transport, kind):
    """One copy, as without a conversion: no slot, no staging."""
    for ways in run_ranks(3, convert, kind, transport=transport)[1:]:
        for buckets, direct, staging_bytes in ways:
            assert buckets == direct > 0 and staging_bytes == 0


def count_messages(comm: Any, out_kind: str, size: int) -> list[int]:
    """That this rank sends in each of four runs of one bucket."""
    spec = Spec.from_tensors([("w", (size,), "uint8")])
    src, dst = Layout.hf().bind(spec), Layout.hf(ranks=[1]).bind(spec)
    model = {"w": torch.ones(size, dtype=torch.uint8)} if comm.rank == 0 else None
    out = None if out_kind == "fresh" else {}
    if out_kind == "torch" and comm.rank == 1:
        out = {"w": torch.zeros(size, dtype=torch.uint8)}
    if out_kind == "ours":
        out = hybridengine.empty(dst, comm.rank)
    resharder = Resharder(model, src, dst, comm=comm, out=out)
    sent = []
    for _ in range(4):
        before = comm.core.traffic[0]
        resharder.run()
        sent.append(comm.core.traffic[0] - before)
    return sent


@pytest.mark.parametrize("transport", ["loopback", "shm", "cma"])
@pytest.mark.parametrize("out_kind", ["fresh", "torch", "ours"])
def test_a_bucket_takes_one_message_each_way_and_a_small_run_none(transport, out_kind):
    """From the second run on, whatever way it goes: granted and landed, or ready and released."""
    source, destination = run_ranks(2, count_messages, out_kind, 1 << 20, transport=transport)
    assert source[1:] == destination[1:] == [1, 1, 1]
    for sent in run_ranks(2, count_messages, out_kind, 4096, transport=transport):
        assert sent[1:] == [0, 0, 0]


def read_moved_sources(comm: Any) -> None:
    """The source's memory is another one in the second run."""
    spec = Spec.from_tensors([("w", (64, 1024), "float32")])
    src, dst = Layout.hf().bind(spec), Layout.replicated(1, ranks=[1]).bind(spec)
    holder = torch.nn.Module()
    holder.w = torch.nn.Parameter(torch.ones(64, 1024))
    out = {"w": torch.zeros(64, 1024)} if comm.rank == 1 else {}
    resharder = Resharder(holder if comm.rank == 0 else None, src, dst, comm=comm, out=out)
    for value in (1.0, 2.0, 3.0):
        holder.w.data = torch.full((64, 1024), value)
        resharder.run()
        if comm.rank == 1:
            assert bool((out["w"] == value).all()), value


@pytest.mark.parametrize("transport", ["loopback", "shm", "cma"])
def test_sources_may_move_between_runs(transport):
    run_ranks(2, read_moved_sources, transport=transport)


def reuse(comm: Any) -> tuple[int, int, int]:
    spec = Spec.from_tensors([("w", (512, 1024), "float32")])
    src, dst = Layout.fsdp2(2).bind(spec), Layout.fsdp2(1, ranks=[comm.world - 1]).bind(spec)
    model = shard_of({"w": torch.zeros(512, 1024, dtype=torch.int32)}, src, comm.rank)
    model = {name: tensor.float() for name, tensor in model.items()}
    resharder = Resharder(model, src, dst, comm=comm)

    def address() -> int:
        result = resharder.run()
        return result["w"].data_ptr() if result else 0

    first = address()
    second = address()  # the first result is gone: its memory is used again
    kept = resharder.run()
    third = address()  # `kept` is alive: other memory
    assert not kept or kept["w"].data_ptr() != third
    return first, second, third


@pytest.mark.parametrize("transport", ["shm", "cma"])
def test_fresh_memory_is_used_again_once_it_is_free(transport):
    first, second, third = run_ranks(2, reuse, transport=transport)[1]
    assert first == second != third


def count_descriptors(comm: Any) -> list[int]:
    counts = []
    for _ in range(6):
        spec = Spec.from_tensors([("w", (256, 1024), "float32")])
        src, dst = Layout.fsdp2(2).bind(spec), Layout.fsdp2(2, ranks=[1, 0]).bind(spec)
        model = {name: torch.ones(shape) for name, shape, _ in src.locals(comm.rank)}
        resharder = Resharder(model, src, dst, comm=comm)
        resharder.run()
        del resharder
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    return counts


def fill_tensors_of_empty(comm: Any, dst: str) -> list[tuple[int, int, int]]:
    """A model whose tensors come in another order than its config has them, and a rule for dst."""
    config = tiny.config(layers=2)
    full = tiny.weights(Spec.from_config(config))
    mine = tiny.fsdp2(full, 2, comm.rank)
    model = torch.nn.Module()
    model.config = SimpleNamespace(to_dict=lambda: config)
    model.state_dict = lambda **_: dict(reversed(mine.items()))
    layout = LayoutRule.parse(dst).bind(Spec.from_config(config))
    out = hybridengine.empty(layout, comm.rank)
    resharder = Resharder(model, "fsdp2(2)", dst, comm=comm, out=out)
    ways = []
    for _ in range(2):
        resharder.run()
        report = resharder.report
        ways.append((report.buckets_in, report.direct_buckets, report.staging_bytes))
    expected = full if dst == "replicated(2)" else tiny.vllm(full, config, 2, comm.rank)
    tiny.assert_same(out, expected)
    return ways


@pytest.mark.parametrize("dst", ["vllm(tp=2)", "replicated(2)"])
def test_tensors_of_empty_are_written_in_place_under_a_rule_too(dst):
    """Their places follow from the layout; a rule gives that of the model's config."""
    for ways in run_ranks(2, fill_tensors_of_empty, dst, transport="shm"):
        for buckets_in, direct, staging_bytes in ways:
            assert buckets_in == direct > 0 and staging_bytes == 0


def test_resharders_leave_no_descriptors():
    for counts in run_ranks(2, count_descriptors, transport="shm"):
        assert counts[-1] <= counts[1], counts


def test_empty_gives_the_tensors_of_a_layout():
    spec = Spec.from_tensors([(name, shape, "int32") for name, shape in SHAPES.items()])
    layout = Layout.fsdp2(3).bind(spec)
    tensors = hybridengine.empty(layout, 1)
    assert [(n, tuple(t.shape)) for n, t in tensors.items()] == [
        (name, shape) for name, shape, _ in layout.locals(1)
    ]
    for tensor in tensors.values():
        assert tensor.is_contiguous() and bool((tensor == 0).all())
        tensor.fill_(-1)
    assert bool((tensors["long"] == -1).all())
    assert hybridengine.empty(layout, 7) == {}


def test_room_is_checked_before_memory_is_promised():
    with pytest.raises(_core.UsageError, match="destination tensors"):
        _core.Region(1 << 60)


def test_huge_pages_keep_the_contents():
    tensor = torch.arange(3 << 20, dtype=torch.int32)
    collapsed = _core.collapse([tensor, torch.zeros(5)])
    assert collapsed % (2 << 20) == 0
    assert torch.equal(tensor, torch.arange(3 << 20, dtype=torch.int32))
