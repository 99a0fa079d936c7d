"""The same promises for every transport that works here; the registry decides which those are."""

from __future__ import annotations

import gc
import os
import subprocess
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import transport_scenarios as scenarios
from ranks import context
from transport_world import BYE, GRANTED, run_ranks

from hybridengine import _core

pytestmark = pytest.mark.threads

ROWS = {row["name"]: row for row in _core.transports()}


def pytest_generate_tests(metafunc) -> None:
    """Runs a test over the registry: all transports, or those that can do what it asks for."""
    for fixture, capability in (
        ("transport", None),
        ("window_transport", "maps"),
        ("payload_transport", "payload"),
    ):
        if fixture in metafunc.fixturenames:
            names = [n for n, row in ROWS.items() if capability is None or row["caps"][capability]]
            metafunc.parametrize(fixture, names)


@pytest.fixture(autouse=True)
def _available(request) -> None:
    for name in {"transport", "window_transport", "payload_transport"} & set(request.fixturenames):
        row = ROWS[request.getfixturevalue(name)]
        if not row["available"]:
            pytest.skip(row["reason"])


def pair(transport: str, group: str = "pair") -> list:
    ends = [_core.Fabric.make(transport, rank, 2, group) for rank in range(2)]
    assert scenarios.connect_all(ends) == [None, None]
    return ends


def test_registry():
    assert [name for name in ROWS if name != "paper"] == ["cma", "shm", "loopback", "null"]
    assert ROWS["loopback"]["available"] and ROWS["null"]["available"]
    assert _core.Fabric.make("auto", 0, 1, "g").caps["processes"]
    with pytest.raises(_core.UsageError, match=r"'infiniband'.*auto, cma, shm, loopback, null"):
        _core.Fabric.make("infiniband", 0, 1, "g")


@pytest.mark.static
def test_what_the_docs_say_of_a_new_transport_compiles():
    source = Path(__file__).with_name("paper_transport.cc")
    include = source.parents[1] / "csrc"
    command = ["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    done = subprocess.run([*command, f"-I{include}", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_messages_come_in_order_and_once(transport):
    for rank, got in enumerate(run_ranks(transport, 2, scenarios.flood_both_ways)):
        assert got == [
            ("message", 1 - rank, GRANTED, n % 7, n, n * 3, n * 5, str(n).encode(), n * 9)
            for n in range(scenarios.NUM_MESSAGES)
        ]


def test_texts(transport):
    sizes = [0, 1, _core.MAX_TEXT_BYTES, 0, 4097, _core.MAX_TEXT_BYTES] * 30
    for rank, got in enumerate(run_ranks(transport, 2, scenarios.texts, sizes)):
        assert got == [scenarios.pattern(size, 1 - rank) for size in sizes]


def test_bad_sends_are_refused(transport):
    for said in run_ranks(transport, 2, scenarios.refuse_bad_sends):
        assert len(said) == 6
        assert "32769 bytes, at most 32768" in said[0]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize(("slot_bytes", "gap_bytes"), [(1, 0), (4097, 3), (300_001, 1)])
def test_all_to_all(window_transport, world, slot_bytes, gap_bytes):
    args = (slot_bytes, gap_bytes)
    for rank, slots in enumerate(run_ranks(window_transport, world, scenarios.all_to_all, *args)):
        for peer, slot in enumerate(slots):
            wanted = scenarios.pattern(slot_bytes, peer) if peer != rank else bytes(slot_bytes)
            assert slot == wanted + bytes(min(gap_bytes, 1))


@pytest.mark.parametrize("world", [2, 4])
def test_what_rides_on_a_put_comes_after_its_bytes(payload_transport, world):
    sizes, rounds = [0, 1, 4097, 300_001], 3
    got = run_ranks(payload_transport, world, scenarios.put_odd_runs, sizes, rounds)
    for rank, seen in enumerate(got):
        peers = [peer for peer in range(world) if peer != rank]
        wanted = [(number, peer) for number in range(rounds) for peer in peers]
        for (number, peer), memory in zip(wanted, seen, strict=True):
            runs = [scenarios.pattern(size, peer + number) for size in sizes]
            assert memory == b"\0" + b"\0".join(runs) + b"\0"


@pytest.mark.parametrize("size", [1, 4097, 1_000_001])
def test_a_get_reads_regions_and_what_is_within_reach(window_transport, size):
    for rank, got in enumerate(run_ranks(window_transport, 2, scenarios.get_what_peers_hold, size)):
        assert got == [scenarios.pattern(size, 1 - rank)] * (
            2 if ROWS[window_transport]["caps"]["pull"] else 1
        )


@pytest.mark.parametrize(
    "sizes", [[5] * 7, [384] * 9, [1000] * 1200, [7, 9000, *[63] * 20, 8191, 8192, *[1] * 8]]
)
def test_short_runs_that_touch_at_the_peer_lie_where_they_should(window_transport, sizes):
    """Few and many, more than a block holds, long ones between them."""
    reaches = ROWS[window_transport]["caps"]["pull"]
    found = run_ranks(window_transport, 2, scenarios.put_short_runs_and_get_them, sizes)
    assert found == [True if reaches else None] * 2


def test_a_put_beyond_the_end_of_a_region_is_refused(window_transport):
    ends = pair(window_transport)
    region = _core.Region(100)
    ends[0].offer(1, region)
    ends[0].send(1)
    assert ends[1].poll(5.0)
    for offset, size in ((len(memoryview(region)), 1), (1 << 63, 2), ((1 << 64) - 1, 2)):
        with pytest.raises(_core.TransportError, match=f"rank 0, {size} bytes at {offset} of"):
            ends[1].put(0, [(region.id, offset, bytearray(size))])
    with pytest.raises(_core.TransportError, match="has not offered: rank 0, region 7"):
        ends[1].put(0, [(7, 0, bytearray(1))])


def test_staging_grows(window_transport):
    sizes = [1, 1000, 4096, 4097, (3 << 20) + 1]
    for seen in run_ranks(window_transport, 2, scenarios.grow_staging, sizes):
        assert seen == [True] * (3 * len(sizes))


def test_staging_before_connect(window_transport):
    assert scenarios.stage_before_connect(window_transport) == b"written"


def test_two_groups_at_once(window_transport):
    first, second = pair(window_transport, "first"), pair(window_transport, "second")
    for ends, byte in ((first, 1), (second, 2)):
        region = ends[0].staging(100)
        ends[0].offer(1, region)
        ends[0].send(1)
        assert len(ends[1].poll(5.0)) == 1
        memoryview(ends[1].map(0, region.id))[50] = byte
    assert memoryview(first[0].staging(100))[50] == 1
    assert memoryview(second[0].staging(100))[50] == 2
    first[1].close()
    assert first[0].poll(5.0)[0][0] == "lost"
    assert second[0].poll(0.05) == []


def test_no_payload_means_no_memory():
    ends = pair("null")
    assert ends[0].staging(1 << 50) is None
    with pytest.raises(_core.TransportError, match="rank 0, region 7"):
        ends[1].map(0, 7)


def test_no_room_for_staging(window_transport):
    ends = pair(window_transport)
    kept = memoryview(ends[0].staging(10))
    for size in (1 << 60, (1 << 64) - 1):
        with pytest.raises(_core.UsageError, match=f"{size} bytes wanted.*Lower bucket_bytes"):
            ends[0].staging(size)
    kept[9] = 1
    assert ends[0].staging(10) is not None
    assert pair(window_transport)[0].staging(0) is None


def test_boards(transport):
    for boards in run_ranks(transport, 3, scenarios.show_board):
        for rank, board in enumerate(boards):
            wanted = (2**62 + rank, 2**63 + rank, 7, rank)
            assert tuple(board.values()) == wanted
    assert _core.Fabric.make(transport, 0, 2, "g").signs(0) is None


@pytest.mark.parametrize("leave_unread", [False, True])
def test_what_was_sent_before_closing_arrives(transport, leave_unread):
    got = run_ranks(transport, 2, scenarios.say_bye_and_close, 300, leave_unread)[1]
    assert [arrival[3] for arrival in got[:-2]] == list(range(300))
    assert got[-2][2] == BYE
    assert got[-1][:2] == ("lost", 0) and "closed" in got[-1][2]


def test_polling_lets_other_threads_run(transport):
    assert run_ranks(transport, 1, scenarios.count_while_polling)[0] > 10_000


def test_a_missing_rank_is_named(transport):
    ends = [_core.Fabric.make(transport, rank, 4, "g") for rank in range(4)]
    began = time.monotonic()
    errors = scenarios.connect_all(ends[:2], 0.3, [end.address() for end in ends])
    assert time.monotonic() - began < 2
    assert any("ranks 2, 3 did not connect" in str(error) for error in errors)
    # The other one may have seen the first give up.
    assert all(isinstance(error, TimeoutError | _core.TransportError) for error in errors)


def test_only_ranks_with_an_address_are_reached(transport):
    ends = [_core.Fabric.make(transport, rank, 3, "g") for rank in (0, 2)]
    addresses = [ends[0].address(), b"", ends[1].address()]
    assert scenarios.connect_all(ends, 9.0, addresses) == [None, None]
    with pytest.raises(_core.UsageError, match="not connected: rank 1"):
        ends[0].send(1)
    assert ends[0].signs(1) is None and ends[0].signs(2)["waiting_for"] == -1
    with pytest.raises(_core.UsageError, match="called before"):
        ends[0].connect(addresses, 1.0)


def test_a_bad_address_is_refused(transport):
    end, other = (_core.Fabric.make(transport, rank, 2, "g") for rank in range(2))
    good = other.address()
    others = [_core.Fabric.make(name, 1, 2, "g").address() for name in ROWS]
    foreign = [one for one in others if len(one) != len(good)]
    flipped = bytes([good[0] ^ 1]) + good[1:], good[:-1] + bytes([good[-1] ^ 1])
    for bad in [b"x", good[:-1], good + b"x", good[:-8], os.urandom(len(good)), *flipped, *foreign]:
        with pytest.raises(_core.UsageError, match="rank 1"):
            end.connect([b"", bad], 1.0)
    for addresses in ([], [good], [good] * 3):
        with pytest.raises(_core.UsageError, match="2 ranks"):
            end.connect(addresses, 1.0)
    with pytest.raises(_core.UsageError, match="rank 2 of 2"):
        _core.Fabric.make(transport, 2, 2, "g")
    with pytest.raises(_core.UsageError, match="not connected"):
        end.send(1)


def test_another_group_is_refused(transport):
    ends = [_core.Fabric.make(transport, rank, 2, f"group {rank}") for rank in range(2)]
    errors = scenarios.connect_all(ends, 5.0)
    assert all(isinstance(error, _core.TransportError) for error in errors)
    assert any("'group 0'" in str(error) and "'group 1'" in str(error) for error in errors)


def test_a_rank_that_is_gone_before_connecting_is_named(transport):
    ends = [_core.Fabric.make(transport, rank, 2, "g") for rank in range(2)]
    addresses = [end.address() for end in ends]
    ends[1].close()
    with pytest.raises(_core.TransportError, match="rank 1 is gone"):
        ends[0].connect(addresses, 5.0)


def shared_mappings() -> int:
    with open("/proc/self/maps") as maps:
        return maps.read().count("/memfd:hybridengine-")


def test_nothing_is_left_behind(transport):
    gc.collect()  # endpoints of earlier tests
    threads, mappings = threading.active_count(), shared_mappings()
    counts = scenarios.cycle_endpoints(transport, 50)
    # Fewer is right: what others of this process left idle is given back at a time of its own.
    assert max(counts) == counts[0]
    assert threading.active_count() <= threads and shared_mappings() <= mappings
    assert [name for name in os.listdir("/dev/shm") if "hybridengine" in name] == []


def test_a_forked_child_is_refused(transport):
    # Forked from a process of its own: what other tests loaded into this one (Arrow, gRPC) runs
    # handlers of its own at a fork, and those do not always come through.
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        told = pool.submit(run_ranks, transport, 2, scenarios.use_in_a_child).result(timeout=120)
    assert len(told) == 2
    for said in told:
        assert "made before fork" in said


def test_many_ranks_cost_little():
    began = time.monotonic()
    ends = [_core.Fabric.make("null", rank, 128, "many") for rank in range(128)]
    fds = len(os.listdir("/proc/self/fd"))
    assert scenarios.connect_all(ends) == [None] * 128
    for end in ends[1:]:
        end.send(0)
    assert len(ends[0].poll(1.0)) == 127
    assert len(os.listdir("/proc/self/fd")) <= fds
    assert time.monotonic() - began < 20
