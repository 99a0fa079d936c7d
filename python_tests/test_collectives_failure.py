"""Collectives when a rank stays away, dies or is interrupted; many of them leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import failure_scenarios
import pytest
import torch
from failure_scenarios import appear, shared_memory
from ranks import MemoryStore, Ranks, run_ranks

import hybridengine as he
from hybridengine import Communicator, TimeoutError, TransportError, _core


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_rank_missing_from_the_call_is_named(size):
    """Rank 1 lives but does not call: the others give up on it, by name, in time."""
    store, raised = MemoryStore(), {}
    done = threading.Event()

    def main(rank: int) -> None:
        comm = Communicator(
            store, rank, 3, name="t", transport="loopback", timeout=2, enter_timeout=1.5
        )
        he.barrier(comm)
        if rank == 1:
            done.wait(20)
            return
        began = time.monotonic()
        try:
            he.all_reduce(torch.ones(size), comm=comm)
        except (TimeoutError, TransportError) as error:
            raised[rank] = str(error), time.monotonic() - began

    threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(3)]
    for thread in threads:
        thread.start()
    for rank in (0, 2):
        threads[rank].join(20)
    done.set()
    for rank in (0, 2):
        text, seconds = raised[rank]
        assert "rank 1" in text and "has not entered the call" in text
        assert seconds < 1.5 + 2


def reduce_until_killed(comm: Communicator, size: int, masked: bool) -> tuple[str, str, float]:
    he.barrier(comm)
    if comm.rank == 1:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    tensor, began = torch.zeros(size, 2), time.monotonic()
    scores = (torch.arange(size) % 2).float()
    try:
        while True:
            if masked:
                he.masked_all_reduce(tensor, scores, 1, out=tensor, comm=comm)
            else:
                he.all_reduce(tensor, comm=comm)
            began = time.monotonic()
    except TransportError as error:
        return str(error), f"{comm.dead}", time.monotonic() - began


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("transport", ["shm", "cma"])
@pytest.mark.parametrize("size", [2, 300_000])
def test_a_rank_that_is_killed(size, transport, masked):
    ranks = Ranks(3, reduce_until_killed, size, masked, transport=transport, timeout=5)
    first, killed, last = ranks.results(30)
    assert killed[0] == "died"
    for kind, seen in (first, last):
        assert kind == "ok"
        text, dead, seconds = seen
        assert "rank 1" in text and dead == "True"
        assert seconds < 5 + 2


@pytest.mark.parametrize("transport", ["shm", "cma"])
@pytest.mark.parametrize(
    ("how", "number", "words"),
    [
        ("kill", signal.SIGKILL, r"process \d+ died"),
        ("raise", None, "ValueError: x"),
        ("stop", signal.SIGSTOP, "no heartbeat|makes no progress"),
    ],
)
def test_one_rank_fails_in_an_all_reduce(tmp_path, how, number, words, transport):
    """B16: 64 MiB; the others raise within 7 s, naming rank 1 and why; nothing is left; a new
    communicator works."""
    before = shared_memory()
    ranks = Ranks(3, failure_scenarios.fail_in_all_reduce, str(tmp_path), how, transport)
    began = appear(tmp_path / "midway")
    if number is not None:
        time.sleep(0.05)
        os.kill(ranks.processes[1].pid, number)
    outcomes = {rank: ranks.result(rank) for rank in (0, 2)}
    if how == "raise":
        status, seen = ranks.result(1)
        assert status == "ok" and (seen["type"], seen["text"]) == ("ValueError", "x")
        assert seen["left"] == (0, 0, 0)
    ranks.end()
    for status, seen in outcomes.values():
        assert status == "ok", seen
        assert seen["type"] in {"TransportError", "TimeoutError"}, seen
        assert "rank 1" in seen["text"] and re.search(words, seen["text"]), seen
        assert seen["at"] - began < 7
        assert "this communicator is dead" in seen["again"]["text"]
        assert seen["left"] == (0, 0, 0)
        assert seen["retry"] == [3]
    assert shared_memory() <= before


def wait_and_be_interrupted(comm: Communicator, folder: str, size: int) -> tuple[str, float]:
    """Rank 1 comes only when rank 0 has been interrupted."""
    he.barrier(comm)
    if comm.rank == 1:
        while not (Path(folder) / "interrupted").exists():
            time.sleep(0.01)
    else:
        (Path(folder) / "waiting").touch()
    try:
        while True:  # what was there in full before the interrupt is done
            he.all_reduce(torch.zeros(size), comm=comm)
    except (KeyboardInterrupt, TransportError) as error:
        return type(error).__name__, time.monotonic()
    finally:
        if comm.rank == 0:
            (Path(folder) / "interrupted").touch()


@pytest.mark.parametrize("size", [2, 300_000])
def test_an_interrupt_ends_the_wait(size, tmp_path):
    ranks = Ranks(2, wait_and_be_interrupted, str(tmp_path), size)
    while not (tmp_path / "waiting").exists():
        time.sleep(0.01)
    time.sleep(0.3)
    pressed = time.monotonic()
    os.kill(ranks.processes[0].pid, signal.SIGINT)
    (_, (mine, at)), (_, (other, _)) = ranks.results(30)
    assert (mine, other) == ("KeyboardInterrupt", "TransportError")
    assert at - pressed < 1  # 0.2 s on a machine that is not busy


def many_calls(comm: Communicator, size: int) -> int:
    """How much 300 calls add to the memory of the process, in KiB, after the first 30."""
    tensor = torch.zeros(size)
    grown = 0
    for call in range(330):
        if call == 30:
            grown = -resident_kib()
        he.all_reduce(tensor, comm=comm)
    return grown + resident_kib()


def resident_kib() -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in x)
    return int(line.split()[1])


def test_many_calls_leave_nothing_behind():
    for size in (2, 50_000):
        for grown in run_ranks(2, many_calls, size, transport="cma"):
            # A sanitizer keeps what is freed for a while, to catch later use: up to 256 MiB.
            assert grown < (320 << 10 if _core.build_facts()["sanitize"] else 1024)
