"""One run of a schedule: buckets of any size, every transport, damage, order, size."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import engine_scenarios as scenarios
import pytest
import tiny_models as tiny
import torch
from ranks import run_ranks, run_threads, thread_outcomes
from transport_world import GRANTED

from hybridengine import (
    Communicator,
    Layout,
    Resharder,
    TransportError,
    UsageError,
    _core,
    empty,
    plan,
    reshard,
)
from hybridengine.layouts.spec import Spec
from hybridengine.overlap import Strided

pytestmark = pytest.mark.threads

NEEDED_BYTES = 10 << 30  # free memory for a tensor of two GiB at both ends, and its neighbours
TWO_GIB = 1 << 31

PAYLOAD = [r["name"] for r in _core.transports() if r["caps"]["payload"]]


@pytest.fixture(params=PAYLOAD)
def transport(request) -> str:
    row = next(r for r in _core.transports() if r["name"] == request.param)
    if not row["available"]:
        pytest.skip(row["reason"])
    return request.param


def free_bytes() -> int:
    with open("/proc/meminfo") as table:
        rows = dict(line.split(":") for line in table)
    return int(rows["MemAvailable"].split()[0]) * 1024


@pytest.mark.parametrize("bucket_bytes", [4, 1000, 1024, 1028, 32 << 20])
def test_tensors_larger_than_a_bucket(transport, bucket_bytes):
    """B17: cut in pieces, exact at any size."""
    full = {"big": torch.randn(20, 20), "fits": torch.randn(16, 16), "small": torch.randn(3)}

    def main(comm: Communicator) -> int:
        held = full if comm.rank == 0 else None
        resharder = Resharder(held, "hf", "hf@1", comm=comm, bucket_bytes=bucket_bytes, verify=True)
        tiny.assert_same(resharder.run(), full if comm.rank == 1 else {})
        return resharder.report.buckets_in

    arrived = run_threads(2, main, transport=transport)
    assert arrived == [0, -(-sum(t.nbytes for t in full.values()) // bucket_bytes)]


def test_a_tensor_of_just_one_bucket():
    """B17: 1600 bytes are 1024 and 576; an exact fit takes one bucket and no empty one after it."""
    for shape, expected in (((20, 20), [1024, 576]), ((16, 16), [1024]), ((3,), [12])):
        spec = Spec.from_tensors([("w", shape, "float32")])
        schedule = plan(spec, "hf", "hf@1").schedule(0, 1024)
        assert [bucket["num_bytes"] for bucket in schedule.buckets] == expected


@pytest.mark.parametrize("bucket_bytes", [0, -1])
def test_buckets_of_nothing(transport, bucket_bytes):
    """B17"""

    def main(comm: Communicator) -> None:
        with pytest.raises(ValueError, match="bucket_bytes"):
            reshard({"w": torch.ones(3)}, "fsdp2(2)", "hf", comm=comm, bucket_bytes=bucket_bytes)

    run_threads(2, main, transport=transport)


def test_null_counts_without_moving():
    """The transport for planning at scale: all numbers, no bytes."""

    def main(comm: Communicator) -> tuple[int, int]:
        mine = {"w": torch.ones(4 - comm.rank)}
        resharder = Resharder(mine, "fsdp2(2)", "replicated(2)", comm=comm, bucket_bytes=8)
        resharder.run()
        return resharder.report.received_bytes, resharder.report.buckets_in

    assert run_threads(2, main, transport="null") == [(12, 2), (16, 2)]


def test_strided_memory_at_both_ends(transport):
    """Transposed, sliced, with odd offsets and steps; a conversion on the way."""
    full = {"w": torch.randn(6, 5), "v": torch.randn(4, 3, 2), "s": torch.tensor(2.0)}

    def laid_out(tensor: torch.Tensor, way: int) -> torch.Tensor:
        if tensor.dim() == 0:
            return torch.stack([tensor, tensor])[1]
        if way == 0:
            return (
                tensor.T.contiguous().T
                if tensor.dim() == 2
                else tensor.transpose(0, 2)
                .clone(memory_format=torch.contiguous_format)
                .transpose(0, 2)
            )
        wide = torch.full([2 * n + 1 for n in tensor.shape], -7.0, dtype=tensor.dtype)
        inner = wide[tuple(slice(1, None, 2) for _ in tensor.shape)]
        return inner.copy_(tensor)

    def main(comm: Communicator, dtype: torch.dtype | None) -> None:
        way = comm.rank
        mine = {n: laid_out(t, way) for n, t in tiny.fsdp2(full, 2, comm.rank).items()}
        expected = full if dtype is None else {n: t.to(dtype) for n, t in full.items()}
        out = {n: laid_out(torch.zeros_like(t), 1 - way) for n, t in expected.items()}
        options = {"dtype": dtype, "bucket_bytes": 16, "verify": True}
        reshard(mine, "fsdp2(2)", "replicated(2)", comm=comm, out=out, **options)
        tiny.assert_same(out, expected)

    for dtype in (None, torch.bfloat16, torch.float64):
        run_threads(2, main, dtype, transport=transport)


def test_a_damaged_bucket_is_noticed(transport, monkeypatch):
    """verify=True: a destination whose rows lie over each other does not keep what is written. It
    would be refused before."""
    monkeypatch.setattr(Strided, "repeats", lambda self: False)

    def main(comm: Communicator, verify: bool) -> None:
        held = {"w": torch.randn(3, 2)} if comm.rank == 0 else None
        out = {"w": torch.zeros(4).as_strided((3, 2), (1, 1))} if comm.rank == 1 else None
        reshard(held, "hf", "hf@1", comm=comm, out=out, verify=verify)
        with comm.call():  # rank 0 is through before rank 1 compares
            comm.all_gather(b"")

    run_threads(2, main, False, transport=transport)
    outcomes = thread_outcomes(2, main, True, transport=transport)
    assert [outcome[1] for outcome in outcomes] == ["TransportError"] * 2
    assert "a bucket arrived damaged: bucket 0 from rank 0 to rank 1, 24 bytes" in outcomes[1][2]
    assert "rank 1 was lost: TransportError: a bucket arrived damaged" in outcomes[0][2]


@pytest.mark.slow
def test_names_and_seeds_that_differ_by_process(tmp_path):
    """B15: dicts in other orders, other hash seeds; ties found under another first name."""
    ranks = [
        subprocess.Popen(
            [sys.executable, scenarios.__file__, str(tmp_path / "store"), str(rank)],
            env={**os.environ, "PYTHONHASHSEED": str(rank + 1)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in ranks:
        said, errors = process.communicate(timeout=60)
        assert said == "True,21,True\n", errors


def test_orders_that_differ_and_sizes_that_differ(transport):
    """B15: other orders are fine; other sizes are an error on both ranks that names the tensor."""

    def main(comm: Communicator, length: int) -> dict:
        ones, twos = torch.ones(4), torch.full((4,), 2.0)
        if comm.rank == 0:
            return reshard({"a": ones, "b": twos}, "replicated(2)", "fsdp2(2)", comm=comm)
        other = {"b": torch.full((length,), 2.0), "a": ones}
        return reshard(other, "replicated(2)", "fsdp2(2)", comm=comm)

    for got in run_threads(2, main, 4, transport=transport):
        tiny.assert_same(got, {"a": torch.ones(2), "b": torch.full((2,), 2.0)})
    for outcome in thread_outcomes(2, main, 6, transport=transport):
        assert outcome[1] == "UsageError"
        assert "'b' is [4] float32 on rank 0 and [6] float32 on rank 1" in outcome[2]


def test_an_execution_checks_its_memory():
    """The core by itself: wrong counts, shapes and types are named."""
    spec = Spec.from_tensors([("w", (4, 2), "float32")])
    layout = Layout.hf().bind(spec)
    schedule = plan(spec, layout, layout).schedule(0)

    def main(comm: Communicator) -> list[str]:
        good = torch.ones(4, 2)
        said = []
        for src, dst in (
            ([], [good]),
            ([good], []),
            ([torch.ones(8)], [good]),
            ([good], [torch.ones(4, 2).half()]),
        ):
            with pytest.raises(UsageError) as raised:
                _core.Run(comm.core, _core.Routine(schedule), src, dst)
            said.append(str(raised.value))
        return said

    said = run_threads(1, main, transport="loopback")[0]
    assert "another number of source tensors" in said[0]
    assert "another number of destination tensors" in said[1]
    assert "'w' has a wrong shape: [8] on rank 0" in said[2]
    assert "'w' has a wrong element type: float16 on rank 0" in said[3]


def test_a_grant_past_the_end_of_memory_is_refused():
    """An offset so large that adding the size of the bucket wraps around."""
    schedule = plan(Spec.from_tensors([("w", (4096,), "float32")]), "hf", "hf@1").schedule(0)
    comm = _core.Communicator("loopback", 0, 2, "too-far", 20.0, 20.0)
    peer = _core.Fabric.make("loopback", 1, 2, "too-far")
    addresses = [comm.address(), peer.address()]
    meeting = threading.Thread(target=peer.connect, args=(addresses, 20.0))
    meeting.start()
    comm.connect(addresses)
    meeting.join()
    peer.show(heartbeat=1, call=1)
    comm.enter()
    run = _core.Run(comm, _core.Routine(schedule), [torch.ones(4096)], [])
    region = peer.staging(1 << 14)
    peer.offer(0, region)
    peer.send(0, GRANTED, 0, call=1, offset=(1 << 64) - 4, value=region.id)
    with pytest.raises(TransportError, match="a slot that no memory has"):
        run.advance()
    comm.close()
    peer.close()


def test_a_segment_that_is_too_small_is_refused():
    """Nothing is written where a peer's memory ends before its tensors do."""
    sizes = (4096, 64)  # that the two ranks believe in

    def main(comm: Communicator) -> str:
        spec = Spec.from_tensors([("w", (sizes[comm.rank],), "float32")])
        schedule = plan(spec, "hf", "hf@1").schedule(comm.rank)
        into = list(empty(Layout.hf(ranks=[1]).bind(spec), comm.rank).values())
        mine = [torch.ones(sizes[0])] if comm.rank == 0 else []
        with pytest.raises(TransportError) as raised, comm.call():
            _core.Run(comm.core, _core.Routine(schedule), mine, into).advance()
        return str(raised.value)

    assert (
        "memory that its tensors do not fit into" in run_threads(2, main, transport="loopback")[0]
    )


# cut of the destination, its memory, transport, and what counts the buckets that went this way
RELEASES = {
    "slot": ("columns", "torch", "shm", None),
    "direct": ("columns", "ours", "shm", "direct_buckets"),
    "written": ("columns", "torch", "cma", "direct_buckets"),
    "read": ("rows", "torch", "cma", "pulled_buckets"),
    "stream": ("rows", "stream", "shm", None),
    "contributions": ("sum", "torch", "shm", None),
}


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("bucket_bytes", [20_000, 300_000, 32 << 20])
@pytest.mark.parametrize("way", RELEASES)
def test_sources_may_change_as_soon_as_they_are_released(way, bucket_bytes, verify):
    """Each is released once; the results are right though it is overwritten then."""
    cut, memory, transport, counter = RELEASES[way]
    ranks = run_ranks(
        3,
        scenarios.give_sources_back,
        *(cut, memory, bucket_bytes, verify),
        transport=transport,
    )
    holders = 3 if cut == "sum" else 2
    for rank, runs in enumerate(ranks):
        for seen in runs:
            num_sources = len(scenarios.SHAPES) if rank < holders else 0
            assert sorted(seen["released"]) == list(range(num_sources))
    if counter is not None and bucket_bytes > 20_000:
        assert all(seen["last"][counter] > 0 for seen in ranks[2])
    if way == "slot" and bucket_bytes == 20_000:  # three slots at a time: the rest is still to go
        assert all(seen["first"]["sent_bytes"] < seen["last"]["sent_bytes"] for seen in ranks[0])


def test_a_source_that_a_result_is_a_view_of_is_never_released():
    def main(comm: Communicator) -> list[tuple[str, int]]:
        spec = Spec.from_tensors([(name, (4, 3), "float32") for name in "ab"])
        layout = Layout.replicated(2).bind(spec)
        schedule = _core.make_schedule(_core.make_plan(layout.core, layout.core), comm.rank)
        held = [torch.ones(4, 3), torch.ones(4, 3)]
        routine = _core.Routine(schedule, tell_released=True)
        with comm.call():
            run = _core.Run(comm.core, routine, held, [held[0], torch.zeros(4, 3)], [0])
            return [run.advance(), run.advance()]

    assert run_threads(2, main, transport="loopback") == [[("released", 1), ("done", -1)]] * 2


@pytest.mark.slow
def test_more_than_two_gib():
    """B22: past 2^31 elements; a few buckets of memory beside the tensor."""
    if free_bytes() < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES >> 30} GiB of free memory")
    sender, receiver = run_ranks(2, scenarios.move_past_two_gib, TWO_GIB + 8, timeout=60, limit=120)
    assert sender["sent"] == receiver["received"] == TWO_GIB + 8
    assert receiver["shape"] == (TWO_GIB + 8,)
    assert receiver["last"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert receiver["marks"] == [0, 77, 1] and receiver["others"] == 77
    for extra in (sender["extra_bytes"], receiver["extra_bytes"]):
        assert extra <= 4 * (32 << 20)
