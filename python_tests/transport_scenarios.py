"""What the ranks of test_transport.py do. Apart from it so that rank processes need no pytest."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
from transport_world import BYE, GRANTED, LANDED, READY, Me

from hybridengine import _core

NUM_MESSAGES = 10_000


def pattern(size: int, seed: int) -> bytes:
    return bytes((index * 7 + seed * 31) & 0xFF for index in range(size))


def flood_both_ways(me: Me) -> list[tuple]:
    """Queues everything before it reads anything, and then reads slowly."""
    peer = 1 - me.rank
    for number in range(NUM_MESSAGES):
        me.endpoint.send(
            peer, GRANTED, number % 7, number, number * 3, number * 5, str(number), number * 9
        )
    got: list[tuple] = []
    while len(got) < NUM_MESSAGES:
        arrivals = me.endpoint.poll(10.0)
        assert arrivals, f"only {len(got)} messages came"
        got += arrivals
        time.sleep(0.001)
    me.flush()
    return got + me.endpoint.poll(0.05)


def texts(me: Me, sizes: list[int]) -> list[bytes]:
    peer = 1 - me.rank
    for size in sizes:
        me.endpoint.send(peer, text=pattern(size, me.rank))
    got = [me.next_from(peer)[7] for _ in sizes]
    me.flush()
    return got


def refuse_bad_sends(me: Me) -> list[str]:
    peer = 1 - me.rank
    tries = [
        lambda: me.endpoint.send(peer, text=b"x" * (_core.MAX_TEXT_BYTES + 1)),
        lambda: me.endpoint.send(me.rank),
        lambda: me.endpoint.send(2),
        lambda: me.endpoint.send(-1),
        lambda: me.endpoint.send(peer, BYE + 1),
        lambda: me.endpoint.map(me.rank, 1),
    ]
    said = []
    for one in tries:
        try:
            one()
        except _core.UsageError as error:
            said.append(str(error))
    me.meet()  # nothing of it was sent, and the endpoint still works
    return said


def all_to_all(me: Me, slot_bytes: int, gap_bytes: int) -> list[bytes]:
    """Each rank writes `slot_bytes` into a slot of every peer; slots are `gap_bytes` apart."""
    pitch = slot_bytes + gap_bytes
    staging = me.endpoint.staging(me.world * pitch + 1)
    me.show(staging)
    for peer in me.peers:
        window = me.window(peer)
        at = me.rank * pitch + 1
        window[at : at + slot_bytes] = pattern(slot_bytes, me.rank)
        me.endpoint.send(peer, LANDED)
    for peer in me.peers:
        assert me.next_from(peer)[2] == LANDED
    if staging is None:  # one rank with nothing to stage
        return []
    view = memoryview(staging)
    return [bytes(view[r * pitch + 1 :][: slot_bytes + min(gap_bytes, 1)]) for r in range(me.world)]


def put_odd_runs(me: Me, sizes: list[int], rounds: int) -> list[bytes]:
    """Every rank puts runs at odd offsets into a region of every peer, some times over; what lies
    there when the message that rode on a put arrives is taken then."""
    pitch = sum(sizes) + len(sizes) + 1
    region = _core.Region(me.world * pitch)
    me.show(region)
    seen = []
    for number in range(rounds):
        for peer in me.peers:
            at, runs = me.rank * pitch + 1, []
            for size in sizes:
                runs.append((me.regions[peer], at, bytearray(pattern(size, me.rank + number))))
                at += size + 1
            me.finish(peer, me.endpoint.put(peer, runs, LANDED, number))
        for peer in me.peers:
            arrival = me.next_from(peer)
            assert arrival[2:4] == (LANDED, number)
            seen.append(bytes(memoryview(region)[peer * pitch : (peer + 1) * pitch]))
        me.meet()
    return seen


def get_what_peers_hold(me: Me, size: int) -> list[bytes]:
    """Reads a region of each peer, and, where it is within reach, its ordinary memory."""
    mine = np.frombuffer(pattern(size, me.rank), np.uint8).copy()
    region = _core.Region(size)
    memoryview(region)[:size] = mine.tobytes()
    me.show(region)
    for peer in me.peers:
        me.endpoint.send(peer, READY, offset=mine.ctypes.data)
    addresses = {peer: me.next_from(peer)[5] for peer in me.peers}
    got = []
    for peer in me.peers:
        for source, begin in ((me.regions[peer], 0), (0, addresses[peer])):
            if source == 0 and not me.endpoint.reaches(peer):
                continue
            into = bytearray(size)
            half = size // 2
            runs = [(source, begin + half, memoryview(into)[half:])]
            if half:
                runs.insert(0, (source, begin, memoryview(into)[:half]))
            assert me.endpoint.get(peer, runs) == 0
            got.append(bytes(into))
    me.meet()
    return got


def put_short_runs_and_get_them(me: Me, sizes: list[int]) -> bool | None:
    """Two ranks: many runs of this rank's ordinary memory that touch in the peer's. What was put is
    what is got back, run by run; None where that memory is out of reach."""
    peer = 1 - me.rank
    mine = np.zeros(sum(sizes), np.uint8)
    me.endpoint.send(peer, READY, offset=mine.ctypes.data)
    begin = me.next_from(peer)[5]
    if not me.endpoint.reaches(peer):
        return None
    starts = [begin + sum(sizes[:i]) for i in range(len(sizes))]

    def expected(rank: int) -> list[bytes]:
        return [pattern(size, rank + i) for i, size in enumerate(sizes)]

    runs = [(0, at, bytearray(run)) for at, run in zip(starts, expected(me.rank), strict=True)]
    me.finish(peer, me.endpoint.put(peer, runs, LANDED, 0))
    assert me.next_from(peer)[2] == LANDED
    assert mine.tobytes() == b"".join(expected(peer))
    got = [bytearray(size) for size in sizes]
    assert me.endpoint.get(peer, [(0, at, run) for at, run in zip(starts, got, strict=True)]) == 0
    me.meet()
    return got == expected(me.rank)


def grow_staging(me: Me, sizes: list[int]) -> list[bool]:
    """Stages ever more; the peer writes the last byte of each size and no more is mapped."""
    peer = 1 - me.rank
    seen = []
    for size in sizes:
        region = me.endpoint.staging(size)
        memory = memoryview(region)
        assert len(memory) >= size
        me.show(region)
        me.window(peer)[size - 1] = 1 + me.rank
        me.meet()
        seen.append(memory[size - 1] == 1 + peer)
        again = memoryview(me.endpoint.staging(1))
        again[size - 1] = 99
        seen.append(memory[size - 1] == 99)  # asking for less gives the same memory
        seen.append(len(me.window(peer)) == len(memory))
        me.meet()
    return seen


def stage_before_connect(transport: str) -> bytes:
    """Two endpoints of one process; staging is older than the connection."""
    ends = [_core.Fabric.make(transport, rank, 2, "early") for rank in range(2)]
    mine = ends[0].staging(777)
    connect_all(ends)
    ends[0].offer(1, mine)
    ends[0].send(1, GRANTED, value=mine.id)
    assert ends[1].poll(5.0)[0][2] == GRANTED
    memoryview(ends[1].map(0, mine.id))[770:777] = b"written"
    ends[1].send(0, LANDED)
    assert ends[0].poll(5.0)[0][2] == LANDED
    return bytes(memoryview(mine)[770:777])


def connect_all(ends: list, timeout_s: float = 20.0, addresses: list[bytes] | None = None) -> list:
    """Connects endpoints of this process at the same time; returns the error of each, or None."""
    given = addresses or [end.address() for end in ends]
    errors: list[Exception | None] = [None] * len(ends)

    def connect(index: int) -> None:
        try:
            ends[index].connect(given, timeout_s)
        except Exception as error:
            errors[index] = error

    threads = [threading.Thread(target=connect, args=(index,)) for index in range(len(ends))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def show_board(me: Me) -> list[dict]:
    me.endpoint.show(
        heartbeat=2**62 + me.rank,
        call=2**63 + me.rank,
        progress=7,
        waiting_for=me.rank,
    )
    me.meet()
    boards = [me.endpoint.signs(rank) for rank in range(me.world)]
    me.meet()
    return boards


def say_bye_and_close(me: Me, count: int, leave_unread: bool) -> list[tuple]:
    """Rank 0 sends, says goodbye and closes; rank 1 looks later and returns all that it sees.

    With `leave_unread` rank 0 closes on messages that it never read, which resets the connection.
    """
    if me.rank == 0:
        for number in range(count):
            me.endpoint.send(1, GRANTED, number)
        me.endpoint.send(1, BYE)
        time.sleep(0.3)
        me.endpoint.close()
        return []
    if leave_unread:
        for _ in range(5):
            me.endpoint.send(0, GRANTED)
    time.sleep(0.6)
    got: list[tuple] = []
    while not got or got[-1][0] != "lost":
        got.append(me.next(5.0))
    me.endpoint.send(0, GRANTED)  # to a lost peer: no error, the loss has been told
    return got + me.endpoint.poll(0.2)


def count_while_polling(me: Me) -> int:
    """How far another Python thread counts while this one waits in poll()."""
    done = threading.Event()
    counted = [0]

    def count() -> None:
        while not done.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    assert me.endpoint.poll(0.3) == []
    done.set()
    thread.join()
    return counted[0]


def use_in_a_child(me: Me) -> str:
    """Forks and returns what the child is told; then the parent's endpoint must still work."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                me.endpoint.poll(0.0)
                said = "nothing"
            except _core.TransportError as error:
                said = str(error)
            me.endpoint.close()
        except BaseException as error:  # the parent is to hear of it
            said = repr(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 10_000).decode()
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    ended = os.waitstatus_to_exitcode(status)
    assert ended == 0, f"the child ended with {ended} and said {said!r}"
    me.meet()
    return said


def cycle_endpoints(transport: str, cycles: int) -> list[int]:
    """Descriptors after each cycle of making, connecting, using and closing two endpoints."""
    counts = []
    for cycle in range(cycles):
        ends = [_core.Fabric.make(transport, rank, 2, str(cycle)) for rank in range(2)]
        ends[1].staging(5000)
        connect_all(ends)
        region = ends[1].staging(50_000)
        if region is not None:
            ends[1].offer(0, region)
        ends[1].send(0)
        assert ends[0].poll(5.0)
        if region is not None and ends[0].caps["maps"]:
            ends[0].map(1, region.id)
        del region
        for end in ends:
            end.close()
        counts.append(len(os.listdir("/proc/self/fd")))
    return counts
