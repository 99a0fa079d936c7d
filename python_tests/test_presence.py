"""What ranks tell each other without being asked, and who is taken for lost, late or elsewhere."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from transport_world import GRANTED

from hybridengine import Spec, _core, plan

pytestmark = pytest.mark.threads


def beside_an_endpoint(transport: str, group: str, enter_timeout: float) -> tuple[Any, Any]:
    """Rank 0, with a timeout of one second, and rank 1, which does what the test says."""
    comm = _core.Communicator(transport, 0, 2, group, 1.0, enter_timeout)
    peer = _core.Fabric.make(transport, 1, 2, group)
    addresses = [comm.address(), peer.address()]
    meeting = threading.Thread(target=peer.connect, args=(addresses, 20.0))
    meeting.start()
    comm.connect(addresses)
    meeting.join()
    return comm, peer


@pytest.mark.parametrize(
    ("early", "said"), [(2, "rank 0 did not answer"), (0, "make different calls")]
)
def test_a_rank_that_is_further_on_in_the_same_call_is_no_fault(early, said):
    """Where a table comes down a tree of messages, a rank may have it before another one does. What
    it says then is no sign of another call; of the rank that owes the table it is."""
    comm = _core.Communicator("null", 1, 3, "early", 1.0, 1.0)
    peers = {rank: _core.Fabric.make("null", rank, 3, "early") for rank in (0, 2)}
    addresses = [peers[0].address(), comm.address(), peers[2].address()]
    meetings = [
        threading.Thread(target=peer.connect, args=(addresses, 20.0)) for peer in peers.values()
    ]
    for meeting in meetings:
        meeting.start()
    comm.connect(addresses)
    for meeting in meetings:
        meeting.join()
    comm.enter()
    for peer in peers.values():
        peer.show(call=1)
    peers[early].send(1, 3, call=1)  # that a bucket is granted
    with pytest.raises((TimeoutError, _core.TransportError), match=said):
        comm.gather([b"mine"])


def test_a_heartbeat_is_a_count_that_the_receiver_times():
    """The peer's clock means nothing here: what keeps changing lives, what stands still is lost."""
    comm, peer = beside_an_endpoint("loopback", "presence", 60.0)
    silent = threading.Event()

    def live() -> None:
        for beat in range(35):  # it never enters the call, which is no reason within a minute
            peer.show(heartbeat=2**40 * (beat + 1))
            time.sleep(0.1)
        silent.set()

    living = threading.Thread(target=live)
    living.start()
    comm.enter()
    with pytest.raises(TimeoutError, match="no heartbeat"):
        comm.gather([b""])
    assert silent.is_set()  # after 3.5 s of a deadline of 2
    living.join()
    comm.close()
    peer.close()


def send_to_who_does_not_read(comm: Any, peer: Any, parts: int) -> Any:
    """In call 2 rank 0 writes `parts` buckets, all granted before, and tells of each; the peer has
    stopped to read. The run, which is over though its messages are not out."""

    def source(elems: int) -> tuple[Any, list[torch.Tensor]]:
        spec = Spec.from_tensors([("w", (elems,), "float32")])
        schedule = plan(spec, "hf", "hf@1").schedule(0, 4)
        return _core.Routine(schedule), [torch.ones(elems)]

    region = peer.staging(1 << 12)
    peer.offer(0, region)

    def grant() -> None:
        for i in range(parts):  # each bucket has one name for each of three manners
            peer.send(0, GRANTED, 3 * i, call=2, value=region.id)
        while not peer.sent_all:
            peer.poll(0.01)
        peer.send(0, GRANTED, 0, call=1, value=region.id)
        while not peer.poll(1.0):
            pass  # until it has what call 1 sends

    granting = threading.Thread(target=grant)
    granting.start()
    comm.enter()
    _core.Run(comm, *source(1), []).advance()
    comm.leave()
    granting.join()
    comm.enter()
    run = _core.Run(comm, *source(parts), [])
    assert run.advance()[0] == "done"
    return run


@pytest.mark.parametrize(
    ("call", "words"),
    [(3, "in the call but makes no progress"), (2, "lives but has not entered the call")],
)
def test_leaving_does_not_wait_for_ever_for_a_rank_that_reads_nothing(call, words):
    """Rank 1 is in call 2, or still before it: it is named, with what was being done."""
    comm, peer = beside_an_endpoint("shm", f"deaf {call}", 1.0)
    peer.show(call=call)
    run = send_to_who_does_not_read(comm, peer, 2000)
    with pytest.raises(TimeoutError) as raised:
        comm.leave()
    del run
    assert "rank 1 did not answer rank 0" in str(raised.value)
    assert words in str(raised.value) and "sending the last messages of a call" in str(raised.value)
    comm.close()
    peer.close()


def test_leaving_does_not_wait_for_a_rank_outside_of_the_call():
    """Rank 1 has left call 2 and does something else for as long as it likes."""
    comm, peer = beside_an_endpoint("shm", "gone on", 60.0)
    peer.show(call=4)
    run = send_to_who_does_not_read(comm, peer, 2000)
    comm.leave()
    del run
    assert not comm.dead
    comm.close()
    peer.close()
