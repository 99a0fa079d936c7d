"""Memory of results: whose it is, when it is used again, and when the system has it back."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import run_ranks, run_threads

import hybridengine
from hybridengine import Communicator, Layout, Resharder, Spec, TransportError, _core

MEMORY_MAP = "memfd:hybridengine-destination"


def mapped_bytes() -> int:
    """Of destination memory, in this process."""
    total = 0
    with open("/proc/self/maps") as table:
        for line in table:
            if MEMORY_MAP in line:
                begin, end = line.split()[0].split("-")
                total += int(end, 16) - int(begin, 16)
    return total


def until(condition: Callable[[], bool], limit_s: float = 20) -> bool:
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def make_resharder(comm: Any) -> Resharder:
    spec = Spec.from_tensors([("w", (512, 1024), "float32")])
    src, dst = Layout.hf().bind(spec), Layout.hf(ranks=[1]).bind(spec)
    model = {"w": torch.ones(512, 1024)} if comm.rank == 0 else None
    return Resharder(model, src, dst, comm=comm)


def forget(comm: Any, how: str) -> bool:
    """Whether a Resharder is gone once it is dropped, without the garbage collector."""
    gc.disable()
    resharder = make_resharder(comm)
    if how == "run":
        resharder.run()
    else:
        resharder.stream(lambda name, tensor: None)
    dropped = weakref.ref(resharder)
    del resharder
    return dropped() is None


@pytest.mark.parametrize("how", ["run", "stream"])
def test_a_resharder_that_is_dropped_is_gone_at_once(how):
    """And with it the memory that it keeps for its next run."""
    assert run_ranks(2, forget, how) == [True, True]


KEEPERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda tensor: tensor,
    "view": lambda tensor: tensor[3:5, ::2],
    "detached": lambda tensor: tensor.detach(),
    "numpy": lambda tensor: tensor.numpy(),
    "numpy view": lambda tensor: tensor.numpy()[1:, 4],
    "memoryview": lambda tensor: memoryview(tensor.numpy()),
    "dlpack": lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    "storage": lambda tensor: tensor.untyped_storage(),
}


def keep(comm: Any, how: str) -> bool:
    """Whether the second run used the memory of the first, of whose result something was kept."""
    resharder = make_resharder(comm)
    result = resharder.run()
    address = result["w"].data_ptr() if result else 0
    kept = KEEPERS[how](result["w"]) if result else None
    del result
    gc.collect()
    result = resharder.run()
    del kept
    return bool(result) and result["w"].data_ptr() == address


@pytest.mark.parametrize("how", KEEPERS)
def test_what_is_kept_of_a_result_keeps_its_memory(how):
    assert not run_ranks(2, keep, how, transport="shm")[1]


def drop(comm: Any) -> tuple[int, bool]:
    resharder = make_resharder(comm)
    result = resharder.run()
    held = mapped_bytes()
    del result
    gc.collect()
    back = until(lambda: mapped_bytes() == 0) if comm.rank == 1 else True
    again = resharder.run()  # and it still works
    assert comm.rank == 0 or bool((again["w"] == 1).all())
    return held, back


@pytest.mark.parametrize("transport", ["shm", "cma"])
def test_results_that_are_dropped_go_back_while_their_resharder_lives(transport):
    held, back = run_ranks(2, drop, transport=transport)[1]
    assert held >= 512 * 1024 * 4 and back


def fail_and_keep_what_is_raised(comm: Any) -> bool:
    """Whether a failed run leaves no memory of results, though its traceback is kept."""
    resharder = make_resharder(comm)
    if comm.rank == 0:
        comm.close()
        return True
    with pytest.raises(_core.TransportError) as kept:
        resharder.run()
    return until(lambda: mapped_bytes() == 0) and kept.value is not None


def test_results_of_a_failed_run_are_let_go():
    assert run_ranks(2, fail_and_keep_what_is_raised) == [True, True]


def test_a_lease_outlives_what_lent_it():
    memory = _core.FreshMemory(1 << 20)
    tensor = torch.frombuffer(memory.lend(), dtype=torch.uint8)
    del memory
    gc.collect()
    tensor.fill_(3)
    assert mapped_bytes() == 1 << 20
    del tensor
    assert mapped_bytes() == 0


def test_only_one_free_segment_is_kept():
    memory = _core.FreshMemory(1 << 20)
    leases = [memory.lend() for _ in range(3)]
    assert mapped_bytes() == 3 << 20 and memory.reserve_seconds > 0
    del leases
    assert mapped_bytes() == 1 << 20
    again = memory.lend()
    assert mapped_bytes() == 1 << 20 and memory.reserve_seconds == 0
    del again


@pytest.mark.parametrize("make", [_core.Region, lambda size: _core.FreshMemory(size).lend()])
def test_other_threads_run_while_memory_is_reserved(make):
    counted = [0]
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # a thread gets its turn only where another gives it away
    thread.start()
    try:
        before = counted[0]
        kept = make(256 << 20)
        assert counted[0] > before
        del kept
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()


def report_reserving(comm: Any) -> list[float]:
    resharder = make_resharder(comm)
    seconds = []
    for _ in range(2):
        result = resharder.run()
        del result
        seconds.append(resharder.report.reserve_seconds)
    return seconds


def test_time_of_reserving_is_reported():
    first, second = run_ranks(2, report_reserving, transport="shm")[1]
    assert first > 0 == second


def read_at_every_run(comm: Any) -> list[tuple[int, float]]:
    """Huge pages under 16 MiB that rank 1 reads; every run gives what the source then holds."""
    spec = Spec.from_tensors([("w", (4 << 20,), "int32")])
    src, dst = Layout.hf().bind(spec), Layout.hf(ranks=[1]).bind(spec)
    model = {"w": torch.arange(4 << 20, dtype=torch.int32)} if comm.rank == 0 else None
    out = {"w": torch.zeros(4 << 20, dtype=torch.int32)} if comm.rank == 1 else {}
    resharder = Resharder(model, src, dst, comm=comm, out=out)
    _core.collapse = None  # which a run would wait for
    reported = []
    for run in range(4):
        if model is not None:
            model["w"].add_(1)
        resharder.run()
        reported.append((resharder.report.huge_page_bytes, resharder.report.huge_page_seconds))
        if comm.rank == 1:
            assert torch.equal(out["w"], torch.arange(4 << 20, dtype=torch.int32) + run + 1)
        if run == 2:
            assert until(lambda: resharder._huge_pages.done)
    return reported


def test_huge_pages_come_beside_the_runs_and_are_reported():
    for reported in run_ranks(2, read_at_every_run, transport="cma"):
        assert reported[0] == reported[1] == (0, 0.0)  # nothing is done in the second run
        collapsed, seconds = reported[3]
        assert collapsed % (2 << 20) == 0 and (seconds > 0 or collapsed == 0)
        assert collapsed <= 16 << 20


def test_huge_pages_stop_with_their_owner():
    tensor = torch.ones(64 << 20, dtype=torch.uint8)
    pages = _core.HugePages([tensor])
    pages.pause()
    collapsed = pages.collapsed_bytes
    time.sleep(0.1)
    assert pages.collapsed_bytes == collapsed and bool((tensor == 1).all())
    pages.resume()
    del pages
    assert bool((tensor == 1).all())


class Pages:
    """Stands for huge pages that are being made: says when it was told to pause."""

    collapsed_bytes, seconds = 0, 0.0

    def __init__(self) -> None:
        self.told: list[str] = []

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")


def test_no_huge_pages_are_made_during_a_run():
    both_are_through = threading.Barrier(2)

    def main(comm: Communicator) -> list[str]:
        source = {"w": torch.ones(4)}
        resharder = Resharder(source, "replicated(2)", "hf@1", comm=comm)
        resharder._huge_pages = pages = Pages()
        move = resharder._move
        resharder._move = lambda *args: (pages.told.append("move"), move(*args))[1]
        resharder.run()
        both_are_through.wait()
        resharder._move = lambda *args: 1 / 0
        with pytest.raises((ZeroDivisionError, TransportError)):
            resharder.run()
        return pages.told

    expected = ["pause", "move", "resume", "pause", "resume"]
    assert run_threads(2, main, transport="loopback") == [expected] * 2


def test_who_asks_for_huge_pages_does_not_wait_for_them():
    """A gigabyte takes a second or more of a tenth of the time."""
    pages = _core.HugePages([torch.empty(1 << 30, dtype=torch.uint8)])
    done, collapsed = pages.done, pages.collapsed_bytes
    assert collapsed < 1 << 30 and (not done or collapsed == 0)  # the kernel may have none


def write_in_place(comm: Any) -> bool:
    """Fresh results are written in place: nothing is read, so no huge pages are made."""
    resharder = make_resharder(comm)
    for _ in range(3):
        resharder.run()
    return resharder._huge_pages is None


def test_what_no_peer_reads_gets_no_huge_pages():
    assert all(run_ranks(2, write_in_place, transport="cma"))


def test_empty_tensors_need_no_memory():
    spec = Spec.from_tensors([("none", (0, 3), "float32")])
    assert hybridengine.empty(Layout.hf().bind(spec), 0)["none"].shape == (0, 3)
