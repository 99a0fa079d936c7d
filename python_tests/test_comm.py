"""Communicators: how ranks find each other, agree, and part."""

from __future__ import annotations

import os
import threading
import time

import pytest
from ranks import MemoryStore, RankFailed, run_ranks, run_threads, thread_outcomes

from hybridengine import Communicator, TransportError, UsageError, _core, rendezvous

pytestmark = pytest.mark.threads


@pytest.fixture(params=["loopback", "shm", "cma"])
def transport(request) -> str:
    return request.param


def pattern(rank: int, size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[rank : rank + size - rank * (size > rank)]


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_all_gather(transport, world, size):
    def main(comm: Communicator) -> list[bytes]:
        with comm.call():
            return comm.all_gather(pattern(comm.rank, size))

    expected = [pattern(rank, size) for rank in range(world)]
    assert run_threads(world, main, transport=transport) == [expected] * world


@pytest.mark.parametrize("world", [2, 5])
def test_all_gather_of_megabytes_from_one_rank(transport, world):
    """More than a socket takes at once, both ways; the others have nothing."""
    big = os.urandom(5 << 20)

    def main(comm: Communicator) -> bool:
        got = []
        for owner in (0, world - 1):
            with comm.call():
                got.append(comm.all_gather(big if comm.rank == owner else b""))
        return all(each.count(b"") == world - 1 and big in each for each in got)

    assert run_threads(world, main, transport=transport) == [True] * world


def test_a_rank_that_leaves_a_call_has_sent_everything():
    """Rank 0 turns to other work at once; what it said must have gone out before."""
    big = os.urandom(4 << 20)

    def main(comm: Communicator) -> float:
        with comm.call():
            comm.all_gather(big if comm.rank == 0 else b"")
        left = time.monotonic()
        if comm.rank == 0:
            time.sleep(2)
        return left

    times = run_threads(3, main, transport="shm", timeout=10)
    assert max(times) - times[0] < 1.5


def test_calls_do_not_mix(transport):
    """Ranks run apart by a whole call; every answer is of the call it was asked in."""

    def main(comm: Communicator) -> list[list[bytes]]:
        got = []
        for call in range(40):
            if (call + comm.rank) % 7 == 0:
                time.sleep(0.005)
            with comm.call():
                got.append(comm.all_gather(f"{call}/{comm.rank}".encode()))
        return got

    expected = [[f"{call}/{rank}".encode() for rank in range(4)] for call in range(40)]
    assert run_threads(4, main, transport=transport) == [expected] * 4


def rank_of_a_process(comm: Communicator, size: int) -> list[int]:
    with comm.call():
        return [len(each) for each in comm.all_gather(bytes(size + comm.rank))]


def test_processes():
    assert run_ranks(3, rank_of_a_process, 100_000) == [[100_000, 100_001, 100_002]] * 3


def test_a_late_rank_is_waited_for(transport):
    store, seen = MemoryStore(), []

    def main(rank: int) -> None:
        time.sleep(0.6 * rank)
        comm = Communicator(store, rank, 3, transport=transport, timeout=20)
        with comm.call():
            seen.append(comm.all_gather(bytes([rank])))
        comm.close()

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == [[b"\0", b"\1", b"\2"]] * 3


def test_ranks_that_do_not_come_are_named(transport):
    began = time.monotonic()
    with pytest.raises(
        TimeoutError, match=r"rank 0, 2, 3 did not come to the rendezvous for 0.3 s"
    ):
        Communicator(MemoryStore(), 1, 4, transport=transport, timeout=0.3)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("rank", "world", "options", "expected"),
    [
        (2, 2, {}, "rank 2, world 2"),
        (-1, 2, {}, "rank -1"),
        (0, 0, {}, "world 0"),
        (0, 1, {"timeout": 0}, "timeout must be a positive number"),
        (0, 1, {"timeout": float("nan")}, "timeout must be a positive number"),
        (0, 1, {"enter_timeout": -3}, "enter_timeout must be a positive number"),
        (0, 1, {"transport": "pigeon"}, "'pigeon'"),
    ],
)
def test_what_cannot_be_made(rank, world, options, expected):
    with pytest.raises(UsageError, match=expected):
        Communicator(MemoryStore(), rank, world, **options)


def join_and_leave(rank: int, store: MemoryStore, caught: list) -> None:
    try:
        Communicator(store, rank, 3, transport="shm", timeout=3).close()
        caught[rank] = None
    except Exception as error:
        caught[rank] = error


@pytest.mark.parametrize("odd", ["another", ""], ids=["wrong token", "no token"])
def test_a_rank_with_another_token_is_named(monkeypatch, odd):
    """Rank 1's address is not signed, or signed with something else. The token itself never
    travels."""
    store = MemoryStore()
    keys = [f"hybridengine/default/{rank}" for rank in range(3)]
    # Ranks are threads here, so each asks for its own environment.
    tokens = {"rank 0": "secret", "rank 1": odd, "rank 2": "secret"}
    monkeypatch.setattr(_core, "env_token", lambda: tokens[threading.current_thread().name])
    caught: list = [None] * 3
    threads = [
        threading.Thread(target=join_and_leave, args=(rank, store, caught), name=f"rank {rank}")
        for rank in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [type(error) for error in caught] == [TransportError] * 3
    assert "rank 1 did not sign its address with this rank's token" in str(caught[0])
    assert "rank 1 did not sign" in str(caught[2]) and "HYBRIDENGINE_TOKEN" in str(caught[2])
    assert "rank 0 did not sign" in str(caught[1])
    for key in keys:
        assert b"secret" not in store.get(key) and b"another" not in store.get(key)


@pytest.mark.parametrize("token", ["", "secret", "ä ö"])
def test_one_token_for_all(monkeypatch, token, transport):
    monkeypatch.setenv("HYBRIDENGINE_TOKEN", token)

    def main(comm: Communicator) -> int:
        with comm.call():
            return len(comm.all_gather(b"x"))

    assert run_threads(2, main, transport=transport) == [2, 2]


def test_an_address_that_was_signed_for_another_rank(monkeypatch):
    """A signature binds the address to its key."""
    monkeypatch.setenv("HYBRIDENGINE_TOKEN", "secret")
    value = rendezvous._sign("hybridengine/a/0", b"address")
    assert rendezvous._verify("hybridengine/a/0", value) == b"address"
    for key, bad in (
        ("hybridengine/a/1", value),
        ("hybridengine/a/0", value[:-1]),
        ("hybridengine/a/0", b"plain:address"),
        ("hybridengine/a/0", b""),
    ):
        with pytest.raises(TransportError, match=rf"rank {key[-1]} did not sign"):
            rendezvous._verify(key, bad)


def test_an_error_in_a_call_reaches_the_others(transport):
    """With its words, whatever they are."""
    words = "é" * 20_001 + "\udc80"

    def main(comm: Communicator) -> None:
        with comm.call():
            if comm.rank == 1:
                raise LookupError(words)
            comm.all_gather(b"")

    outcomes = thread_outcomes(3, main, transport=transport)
    assert outcomes[1][1] == "LookupError"
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome[1] == "TransportError"
        assert "rank 1 was lost: LookupError: " + "é" * 10_000 in outcome[2]


def test_a_closed_communicator(transport):
    def main(comm: Communicator) -> str:
        with comm.call():
            comm.all_gather(b"")
        comm.close()
        comm.close()
        assert comm.dead and "dead" in repr(comm) and comm.transport == transport
        with (
            pytest.raises(TransportError, match="communicator is dead: it was closed"),
            comm.call(),
        ):
            pass
        with pytest.raises(TransportError, match="it was closed"):
            comm.all_gather(b"")
        return "closed"

    assert run_threads(2, main, transport=transport) == ["closed"] * 2


def test_a_peer_that_closed_is_told_from_one_that_died(transport):
    def main(comm: Communicator) -> None:
        with comm.call():
            comm.all_gather(b"")
        if comm.rank == 1:
            return comm.close()
        with comm.call():
            comm.all_gather(b"")

    outcomes = thread_outcomes(2, main, transport=transport)
    assert outcomes[0][1] == "TransportError"
    assert "rank 1 was lost: it closed its communicator" in outcomes[0][2]


def test_two_threads_do_not_share_a_call():
    with pytest.raises(RankFailed, match="is in a call already"):

        def main(comm: Communicator) -> None:
            with comm.call(), comm.call():
                pass

        run_threads(1, main, transport="loopback")


def test_making_and_closing_leaves_nothing_behind(transport):
    """300 pairs: no more descriptors and threads than before. A process may start a thread of its
    own meanwhile, so a few more are no leak; one for each pair is."""

    def counts() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def cycle(times: int) -> None:
        for _ in range(times):
            store = MemoryStore()
            first = threading.Thread(
                target=lambda s=store: Communicator(s, 0, 2, transport=transport).close()
            )
            first.start()
            Communicator(store, 1, 2, transport=transport).close()
            first.join()

    cycle(5)
    before = counts()
    cycle(300)
    deadline = time.monotonic() + 5  # the kernel takes a moment to bury a joined thread
    while counts() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    descriptors, threads = counts()
    assert descriptors <= before[0] + 3 and threads <= before[1] + 3


def test_a_communicator_that_is_dropped_frees_its_thread():
    def threads() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    before = threads()
    comm = Communicator(MemoryStore(), 0, 1, transport="shm")
    watchdog = threads() - before
    assert len(watchdog) == 1
    del comm
    deadline = time.monotonic() + 5
    while watchdog & threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not watchdog & threads()
