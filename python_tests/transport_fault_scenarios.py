"""What the ranks of test_transport_faults.py do. Apart from it so that they need no pytest."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import time

from transport_world import GRANTED, Me

from hybridengine import _core

F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2  # not in every Python's fcntl


def watch_a_death(me: Me, with_child: bool) -> list[tuple]:
    """Rank 1 sends and waits to be killed; rank 0 says what it saw and how long it took."""
    if me.rank == 1:
        for number in range(3):
            me.endpoint.send(0, GRANTED, number)
        if with_child and os.fork() == 0:
            time.sleep(5)  # holds copies of all descriptors
            os._exit(0)
        me.link.send(("ready", os.getpid()))
        while True:
            time.sleep(1)
    me.link.send(("ready", os.getpid()))
    me.link.recv()
    return [me.next(1.0) for _ in range(4)] + me.endpoint.poll(0.2)


def send_to_a_stopped_peer(me: Me, count: int) -> float | list[int]:
    if me.rank == 1:
        me.link.send(("ready", os.getpid()))
        return [me.next_from(0)[3] for _ in range(count)]
    me.link.recv()
    began = time.monotonic()
    for number in range(count):
        me.endpoint.send(1, GRANTED, number, text=b"x" * 100)
    took_s = time.monotonic() - began
    me.link.send(("sent", took_s))
    assert not me.endpoint.sent_all
    me.flush()
    return took_s


def stage_under_a_file_limit(me: Me) -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        me.endpoint.staging(2 << 20)
        return "nothing"
    except _core.UsageError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def hear_nonsense(me: Me, sort: str) -> list[tuple]:
    """Rank 1 writes past its endpoint into the socket; rank 0 returns what it sees."""
    if me.rank == 1:
        for connection in unix_connections():
            send_nonsense(connection, sort)
        return []
    got = []
    while not got or got[-1][0] != "lost":
        got.append(me.next(5.0))
    return got


def unix_connections() -> list[socket.socket]:
    """The connected message sockets of this process, as copies."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        if copy.family == socket.AF_UNIX and copy.type & 0xF == socket.SOCK_SEQPACKET:
            found.append(copy)
    return found


def frame(kind: int, num_bytes: int = 0, text_bytes: int = 0) -> bytes:
    # Thirteen words; kind and bucket share the first.
    words = [kind, *[0] * 9, num_bytes, text_bytes, 0]
    return b"".join(word.to_bytes(8, "little") for word in words)


def send_nonsense(connection: socket.socket, sort: str) -> None:
    if sort == "short":
        connection.send(b"garbage")
    elif sort == "long":
        connection.send(frame(1) + b"x" * 40_000)
    elif sort == "kind":
        connection.send(frame(8))
    elif sort == "length":
        connection.send(frame(1, text_bytes=2**40))
    elif sort == "hello":
        connection.send(frame(0x100))
    elif sort == "no memory":
        connection.send(frame(0x101, num_bytes=4096))
    else:  # memory that can still be cut, or is shorter than announced
        memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, 4096)
        if sort == "short memory":
            fcntl.fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK)
        copies = 2 if sort == "two memories" else 1
        socket.send_fds(connection, [frame(0x101, num_bytes=8192)], [memory] * copies)
