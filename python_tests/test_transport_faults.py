"""What transports between processes do when a peer dies, stops, lies, or is a stranger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import transport_fault_scenarios as faults
import transport_scenarios as scenarios
from transport_world import Ranks, run_ranks

from hybridengine import _core

PROCESS_ROWS = {r["name"]: r for r in _core.transports() if r["caps"]["processes"]}


@pytest.fixture(params=list(PROCESS_ROWS))
def transport(request) -> str:
    row = PROCESS_ROWS[request.param]
    if not row["available"]:
        pytest.skip(row["reason"])
    return row["name"]


@pytest.fixture
def shm() -> str:
    if not PROCESS_ROWS["shm"]["available"]:
        pytest.skip(PROCESS_ROWS["shm"]["reason"])
    return "shm"


@pytest.mark.parametrize("with_child", [False, True], ids=["alone", "with a forked child"])
def test_a_killed_peer_is_lost_at_once(transport, with_child):
    with Ranks(transport, 2, faults.watch_a_death, [with_child]) as ranks:
        for rank in range(2):
            ranks.receive(rank, "ready")
        pid = ranks.signal(1, signal.SIGKILL)
        ranks.links[0].send("killed")
        got = ranks.receive(0, "result")
    assert [arrival[3] for arrival in got[:3]] == [0, 1, 2]
    assert got[3:] == [("lost", 1, f"process {pid} died")]


def test_sending_to_a_stopped_peer_does_not_block(transport):
    count = 20_000
    with Ranks(transport, 2, faults.send_to_a_stopped_peer, [count]) as ranks:
        ranks.receive(1, "ready")
        ranks.signal(1, signal.SIGSTOP)
        ranks.links[0].send("stopped")
        assert ranks.receive(0, "sent") < 5
        ranks.signal(1, signal.SIGCONT)
        assert ranks.receive(1, "result") == list(range(count))


def test_a_peer_that_dies_before_connecting_is_named(transport):
    code = (
        "import sys; from hybridengine import _core\n"
        f"end = _core.Fabric.make({transport!r}, int(sys.argv[1]), 2, 'g')\n"
        "print(end.address().hex(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    for rank in range(2):
        peer = subprocess.Popen(
            [sys.executable, "-c", code, str(1 - rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        theirs = bytes.fromhex(peer.stdout.readline())
        end = _core.Fabric.make(transport, rank, 2, "g")
        addresses = [end.address(), theirs] if rank == 0 else [theirs, end.address()]
        killer = threading.Timer(0.3, peer.kill)
        killer.start()
        began = time.monotonic()
        with pytest.raises(_core.TransportError, match=rf"rank {1 - rank} .*process {peer.pid}"):
            end.connect(addresses, 20.0)
        assert time.monotonic() - began < 2
        killer.join()
        peer.communicate()


@pytest.mark.threads
def test_an_address_of_a_third_process_does_not_let_a_rank_in(shm):
    """Rank 1 was told that rank 0 is some other, living process: it drops whoever else knocks."""
    with Ranks(shm, 1, scenarios.count_while_polling) as other:
        ends = [_core.Fabric.make(shm, rank, 2, "g") for rank in range(2)]
        rank_1 = ends[1].address()
        errors: list = []
        thread = threading.Thread(
            target=lambda: errors.extend(scenarios.connect_all(ends[:1], 5.0, [b"", rank_1]))
        )
        thread.start()
        with pytest.raises(TimeoutError, match="rank 0 did not connect"):
            ends[1].connect([other.addresses[0], rank_1], 0.5)
        thread.join()
        assert "rank 1 refused the connection" in str(errors[0])
        other.results()


def forged(address: bytes, at: int, replacement: bytes) -> bytes:
    """An address whose part of shm has other facts, with digests that fit."""

    def sealed(body: bytes) -> bytes:
        return body + _core.digest(body).to_bytes(8, "little")

    begin = address.index(b"host") + len(b"host") + 8  # after its family and its length
    of_shm = address[begin:-8]
    of_shm = sealed(of_shm[:at] + replacement + of_shm[at + len(replacement) : -8])
    return sealed(address[:begin] + of_shm)


def test_a_listener_that_belongs_to_another_process_is_refused(shm):
    ends = [_core.Fabric.make(shm, rank, 2, "g") for rank in range(2)]
    address = forged(ends[1].address(), 76, os.getppid().to_bytes(4, "little"))
    facts = f"process {os.getpid()} of uid {os.getuid()}, expected process {os.getppid()}"
    with pytest.raises(_core.TransportError, match=f"rank 1 is not who its address says: {facts}"):
        ends[0].connect([b"", address], 5.0)


@pytest.mark.parametrize(
    ("at", "replacement", "reason"),
    [
        (8, b"0000", "on another host, boot id 0000"),
        (48, b"\0\0\0\0", "in another network namespace"),
        (56, b"\0\0\0\0", "in another user namespace"),
        (64, b"\0\0\0\0", "in another pid namespace"),
        (72, b"\xff\xff\xff\x7f", "runs as uid 2147483647"),
    ],
)
def test_a_rank_out_of_reach_is_refused_with_the_reason(shm, at, replacement, reason):
    ends = [_core.Fabric.make(shm, rank, 2, "g") for rank in range(2)]
    address = forged(ends[1].address(), at, replacement)
    with pytest.raises(_core.TransportError, match=f"shm does not reach rank 1: it.*{reason}"):
        ends[0].connect([b"", address], 5.0)


def test_a_rank_that_claims_another_number_is_refused(shm):
    ends = [_core.Fabric.make(shm, rank, 3, "g") for rank in (0, 0, 2)]
    errors = scenarios.connect_all(ends, 3.0)
    assert all(isinstance(error, TimeoutError | _core.TransportError) for error in errors)
    assert "claims a rank that it cannot have" in str(errors[2])
    assert f"process {os.getpid()}, rank 0" in str(errors[2])


def listener_names() -> set[str]:
    """Of this process; the table has those of all."""
    with open("/proc/net/unix") as table:
        words = [line.split() for line in table]
    fds = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    mine = {os.readlink(fd) for fd in fds if fd.is_symlink()}
    named = [row for row in words if len(row) > 7 and row[7].startswith("@hybridengine-")]
    return {row[7] for row in named if f"socket:[{row[6]}]" in mine}


def test_a_stranger_does_not_disturb(shm, capfd):
    before = listener_names()
    ends = [_core.Fabric.make(shm, rank, 2, "g") for rank in range(2)]
    names = listener_names() - before
    assert len(names) == 2
    code = (
        "import json, socket, sys\n"
        "for name in json.loads(sys.argv[1]) * 40:\n"
        "    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "    one.connect(chr(0) + name[1:])\n"
        "    one.send(b'let me in')\n"
        "    globals().setdefault('kept', []).append(one)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    stranger = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(sorted(names))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert stranger.stdout.readline() == "ready\n"
    assert scenarios.connect_all(ends) == [None, None]
    ends[0].send(1)
    assert len(ends[1].poll(5.0)) == 1
    stranger.communicate()
    assert ends[0].poll(0.05) == [] == ends[1].poll(0.05)
    warnings = [line for line in capfd.readouterr().err.splitlines() if "dropped a conn" in line]
    assert len(warnings) == 2  # one for each endpoint
    assert all(f"process {stranger.pid} of uid {os.getuid()}" in line for line in warnings)
    for end in ends:
        end.close()
    assert not names & listener_names()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_another_user_is_refused(shm):
    code = (
        "import os, sys; from hybridengine import _core\n"
        "os.setuid(65534)\n"
        "end = _core.Fabric.make('shm', 0, 2, 'g')\n"
        "print(end.address().hex(), flush=True)\n"
        "try: end.connect([b'', bytes.fromhex(sys.stdin.readline())], 5.0)\n"
        "except _core.TransportError as error: print(error)\n"
    )
    peer = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    theirs = bytes.fromhex(peer.stdout.readline())
    end = _core.Fabric.make(shm, 1, 2, "g")
    mine = end.address()
    with pytest.raises(_core.TransportError, match="rank 0: it runs as uid 65534, this rank as 0"):
        end.connect([theirs, mine], 5.0)
    said, _ = peer.communicate(mine.hex() + "\n")
    assert "rank 1: it runs as uid 0, this rank as 65534" in said


@pytest.mark.parametrize(
    ("sort", "reason"),
    [
        ("short", "a message of 7 bytes"),
        ("long", "a message longer than any"),
        ("kind", "a message of kind 8"),
        ("length", "a text of 0 bytes said to have 1099511627776"),
        ("hello", "a second hello"),
        ("no memory", "no descriptor came with it"),
        ("open memory", "not sealed"),
        ("short memory", "4096 bytes, not 8192 and a mark"),
        ("two memories", "2 descriptors at once"),
    ],
)
def test_a_peer_that_sends_nonsense_is_lost(shm, sort, reason):
    got = run_ranks(shm, 2, faults.hear_nonsense, sort)[0]
    assert got[:-1] == [] and reason in got[0][2]


def test_staging_beyond_a_limit_is_an_error(shm):
    for said in run_ranks(shm, 2, faults.stage_under_a_file_limit):
        assert "no room for staging: 2097152 bytes wanted" in said and "Lower bucket_bytes" in said


@pytest.mark.threads
def test_many_ranks_connect_quickly(shm):
    ends = [_core.Fabric.make(shm, rank, 32, "many") for rank in range(32)]
    began = time.monotonic()
    assert scenarios.connect_all(ends) == [None] * 32
    assert time.monotonic() - began < 10
    for end in ends[1:]:
        end.send(0)
    got: list[tuple] = []
    while len(got) < 31:
        arrivals = ends[0].poll(5.0)
        assert arrivals
        got += arrivals
    assert sorted(arrival[1] for arrival in got) == list(range(1, 32))


@pytest.mark.threads
def test_a_late_rank_is_waited_for(transport):
    ends = [_core.Fabric.make(transport, rank, 3, "g") for rank in range(3)]
    addresses = [end.address() for end in ends]
    threads = []
    for rank in (2, 0, 1):
        threads.append(threading.Thread(target=ends[rank].connect, args=(addresses, 20.0)))
        threads[-1].start()
        time.sleep(0.2)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    ends[1].send(2)
    assert len(ends[2].poll(5.0)) == 1


def test_ctrl_c_ends_a_wait(transport):
    """A signal handler that raises ends connect() and poll() within 0.2 s."""

    class Pressed(Exception):
        pass

    def press(number, frame):
        raise Pressed

    previous = signal.signal(signal.SIGUSR1, press)
    try:
        alone, lost = (_core.Fabric.make(transport, rank, 2, "g") for rank in range(2))
        single = _core.Fabric.make(transport, 0, 1, "g")
        single.connect([b""], 1.0)
        for wait in (lambda: alone.connect([b"", lost.address()], 20.0), lambda: single.poll(20.0)):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            began = time.monotonic()
            with pytest.raises(Pressed):
                wait()
            assert time.monotonic() - began < 0.6
    finally:
        signal.signal(signal.SIGUSR1, previous)
