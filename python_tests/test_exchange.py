"""Exchange: packets of any size between all ranks, through few slots."""

from __future__ import annotations

import os

import pytest
from ranks import MEDIA, run_ranks, run_threads, thread_outcomes

from hybridengine import Communicator, _core


def payload(src: int, dst: int, bound: int, kind: str) -> bytes:
    """Of another size for each pair: from nothing to all that is allowed."""
    share = {"even": bound, "mixed": bound * ((3 * src + 5 * dst) % 7) // 6, "none": 0}[kind]
    return bytes((17 * src + 29 * dst + i) % 251 for i in range(share))


def exchanged(comm: Communicator, bound: int, slot_bytes: int, kind: str) -> bool:
    """Twice, so that slots are used again by a later call."""
    alike = True
    for _ in range(2):
        mine = [payload(comm.rank, peer, bound, kind) for peer in range(comm.world)]
        with comm.call():
            got = _core.exchange_bytes(comm.core, mine, bound, slot_bytes, 7)
        wanted = [payload(peer, comm.rank, bound, kind) for peer in range(comm.world)]
        wanted[comm.rank] = b""
        alike &= got == wanted
    return alike


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("transport", MEDIA)
def test_every_rank_gets_what_was_sent_to_it(world, transport):
    for kind in ("even", "mixed", "none"):
        for bound, slot_bytes in ((1, 64), (1000, 64), (5000, 4096), (100, 4096)):
            found = run_threads(world, exchanged, bound, slot_bytes, kind, transport=transport)
            assert found == [True] * world


@pytest.mark.parametrize("transport", ["shm", "cma"])
def test_between_processes(transport):
    found = run_ranks(3, exchanged, 20_000, 1000, "mixed", transport=transport)
    assert found == [True] * 3


def test_without_payload_sizes_still_travel():
    def main(comm: Communicator) -> list[int]:
        mine = [bytes(100 * (comm.rank + 1))] * comm.world
        with comm.call():
            got = _core.exchange_bytes(comm.core, mine, 300, 64, 7)
        return [len(each) for each in got]

    found = run_threads(3, main, transport="null")
    assert found == [[0, 200, 300], [100, 0, 300], [100, 200, 0]]


def test_different_plans_are_told_apart():
    def main(comm: Communicator) -> None:
        with comm.call():
            _core.exchange_bytes(comm.core, [b"1234"] * 2, 4, 64, 7 + 100 * comm.rank)

    outcomes = thread_outcomes(2, main, transport="loopback", timeout=5)
    assert {outcome[1] for outcome in outcomes} == {"TransportError"}
    assert any("different collectives" in outcome[2] for outcome in outcomes)


def test_another_number_of_packets_is_told():
    """A peer that sends more than was agreed on is a fault, not a wait."""

    def main(comm: Communicator) -> None:
        bound = 64 if comm.rank == 0 else 640
        with comm.call():
            _core.exchange_bytes(comm.core, [bytes(bound)] * 2, bound, 64, 7)

    outcomes = thread_outcomes(2, main, transport="loopback", timeout=3)
    assert {outcome[1] for outcome in outcomes} <= {"TransportError", "TimeoutError"}


def dies(comm: Communicator) -> str:
    if comm.rank == 1:
        os._exit(3)
    with comm.call():
        _core.exchange_bytes(comm.core, [bytes(5000)] * 3, 5000, 64, 7)
    return "done"


def test_a_dead_peer_is_named():
    from ranks import Ranks

    outcomes = Ranks(3, dies, transport="shm", timeout=20).results(30)
    assert outcomes[1] == ("died", 3)
    for rank in (0, 2):
        assert outcomes[rank][1] == "TransportError"
        assert "rank 1" in outcomes[rank][2]
