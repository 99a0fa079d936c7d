"""An error of one rank, of whatever class, reaches the others at once; only what all ranks found
alike leaves the communicator alive."""

from __future__ import annotations

import threading

import one_sided_scenarios as scenarios
import pytest
import torch
from ranks import MemoryStore, run_ranks, run_threads, thread_outcomes

import hybridengine as he
from hybridengine import Communicator, UsageError, _core

AT_ONCE_S = 2


@pytest.mark.parametrize("what", scenarios.COLLECTIVES)
def test_a_rank_without_room_within_a_collective(what):
    """It is a UsageError there, and nobody else's."""
    results = run_ranks(3, scenarios.without_room, what, timeout=20)
    for rank, result in enumerate(results):
        type_, text = result["seen"]
        assert type_ == ("UsageError" if rank == 1 else "TransportError"), text
        assert "no room" in text and (rank == 1 or "rank 1 was lost" in text)
        assert result["seconds"] < AT_ONCE_S and result["dead"]


def test_what_a_tensor_raises_when_it_is_read(transport="loopback"):
    """Neither a UsageError nor within the core: the others hear of it all the same."""

    class Odd:
        def __dlpack__(self, **_):
            raise LookupError("no memory behind it")

        def __dlpack_device__(self):
            return (1, 0)

    def main(comm: Communicator) -> None:
        he.all_reduce(Odd() if comm.rank == 1 else torch.ones(3), comm=comm)

    outcomes = thread_outcomes(3, main, transport=transport, timeout=20)
    assert outcomes[1][1] in ("LookupError", "UsageError"), outcomes[1]
    for rank in (0, 2):
        assert "no memory behind it" in outcomes[rank][2], outcomes[rank]


def test_what_all_ranks_found_alike_leaves_the_communicator_alive():
    def main(comm: Communicator) -> float:
        with pytest.raises(UsageError, match="rank 2 cannot take part"):
            he.all_reduce(torch.ones(3), "median" if comm.rank == 2 else "sum", comm=comm)
        with pytest.raises(UsageError, match="ask for different collectives"):
            he.all_reduce(torch.ones(3 + comm.rank), comm=comm)
        assert not comm.dead
        got = torch.ones(1)
        he.all_reduce(got, comm=comm)
        return got.item()

    assert run_threads(3, main, transport="loopback") == [3.0] * 3


def test_a_thread_that_makes_a_call_speaks_as_its_rank(capfd, monkeypatch):
    """Two communicators of one process, each rank another in each."""
    monkeypatch.setenv("HYBRIDENGINE_LOG", "info")
    monkeypatch.setenv("HYBRIDENGINE_LOG_SUBSYS", "python")
    stores = MemoryStore(), MemoryStore()
    barrier = threading.Barrier(2)

    def main(number: int) -> None:
        pair = [
            Communicator(stores[i], rank, 2, name=f"{i}", transport="shm", timeout=20)
            for i, rank in enumerate((number, 1 - number))
        ]
        barrier.wait(20)
        for i, comm in enumerate(pair):
            with comm.call():
                _core.log("info", "python", f"thread {number} in {i}")
                comm.all_gather(b"")
            barrier.wait(20)
        for comm in pair:
            comm.close()

    threads = [threading.Thread(target=main, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    lines = sorted(line for line in capfd.readouterr().err.splitlines() if "thread" in line)
    assert lines == sorted(
        f"[hybridengine rank {rank} info python] thread {number} in {i}"
        for number in range(2)
        for i, rank in enumerate((number, 1 - number))
    )


def test_what_waits_for_the_end_of_its_own_call_is_told_so():
    """Within a call neither another one nor the wait for work that comes after it can end."""

    def main(comm: Communicator) -> float:
        tensor = torch.ones(3)
        with comm.call():
            work = he.all_reduce(tensor, comm=comm, async_op=True)
            for action in (work.wait, lambda: he.barrier(comm)):
                with pytest.raises(UsageError, match="is in a call already"):
                    action()
        work.wait(20)
        return tensor.sum().item()

    assert run_threads(2, main, transport="loopback") == [6.0, 6.0]
