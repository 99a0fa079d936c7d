"""Of several media the Fabric takes for each pair the first one that serves it."""

from __future__ import annotations

import threading

import pytest
from fabric_scenarios import NAMES, host_two_ranks
from ranks import context
from transport_scenarios import connect_all

from hybridengine import _core

pytestmark = pytest.mark.threads


def two_processes() -> list:
    links, runners = [], []
    for first in (0, 2):
        mine, theirs = context.Pipe()
        runners.append(context.Process(target=host_two_ranks, args=(first, theirs), daemon=True))
        runners[-1].start()
        theirs.close()
        links.append(mine)
    addresses = [address for link in links for address in receive(link)]
    for link in links:
        link.send(addresses)
    told = [receive(link) for link in links]
    for link, runner in zip(links, runners, strict=True):
        link.send("end")
        runner.join(10)
        assert runner.exitcode == 0
    return told


def receive(link):
    assert link.poll(60), "a process says nothing"
    return link.recv()


def test_each_pair_has_the_first_medium_that_serves_it():
    for index, (errors, told, heard, caps) in enumerate(two_processes()):
        assert errors == [None, None]
        assert caps == {"maps": True, "payload": True}
        for rank, peer, medium, reason in told:
            same = rank // 2 == peer // 2
            assert medium == ("loopback" if same else "shm")
            assert reason == ("" if same else "loopback: it is in another process")
        for rank, messages in zip((2 * index, 2 * index + 1), heard, strict=True):
            assert messages == [(peer, 10 * peer + rank) for peer in range(4) if peer != rank]


def test_what_a_list_of_names_must_be():
    assert _core.Fabric.make(NAMES, 0, 1, "g").name == NAMES
    with pytest.raises(_core.UsageError, match=r"two transports of one family.*'cma,shm'"):
        _core.Fabric.make("cma,shm", 0, 1, "g")
    for names in ("shm,", ",shm", "shm,,loopback", "loopback, shm", ""):
        with pytest.raises(_core.UsageError, match="no such transport"):
            _core.Fabric.make(names, 0, 1, "g")


def test_ranks_without_a_medium_in_common_are_named():
    ends = [_core.Fabric.make(name, rank, 2, "g") for rank, name in enumerate(("shm", NAMES[:8]))]
    for rank, error in enumerate(connect_all(ends, 5.0)):
        assert isinstance(error, _core.UsageError)
        assert f"rank {1 - rank} has none of the transports of this rank" in str(error)


def test_the_order_of_the_lower_rank_decides():
    ends = [_core.Fabric.make(n, r, 2, "g") for r, n in enumerate((NAMES, "shm,loopback"))]
    assert connect_all(ends, 20.0) == [None, None]
    assert [ends[0].medium(1), ends[1].medium(0)] == ["loopback", "loopback"]


def test_a_communicator_over_two_media():
    """Its small exchanges go by messages, for no page is mapped by all."""
    comms = [_core.Communicator(NAMES, rank, 2, "g", 20.0, 20.0) for rank in range(2)]
    addresses = [comm.address() for comm in comms]
    gathered: list = [None, None]

    def use(rank: int) -> None:
        comms[rank].connect(addresses)
        comms[rank].enter()
        gathered[rank] = comms[rank].gather([bytes([rank]) * 100_000])
        comms[rank].leave()

    threads = [threading.Thread(target=use, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gathered == [[[bytes([rank]) * 100_000] for rank in range(2)]] * 2
    assert comms[0].transport == NAMES
