"""Memory that peers reach: who holds it, and when it goes back to the system.

Sizes and counts come from /proc of the processes that map it, never from time.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import region_scenarios as scenarios
from ranks import context, outcomes_of, run_ranks
from transport_world import Ranks
from transport_world import run_ranks as run_endpoints

from hybridengine import _core


def test_dropped_memory_is_free_though_a_peer_maps_it():
    with Ranks("shm", 2, scenarios.drop_what_is_mapped) as ranks:
        ranks.receive(1, "dropped")
        for link in ranks.links:
            link.send("go on")
        writer, owner = ranks.results()
    (start, none), (full, one), (dropped, still), (after, gone) = writer
    assert full - start >= 64 and dropped - start <= 1 and after - start <= 1
    assert (none, one, still, gone) == (0, 1, 1, 0)
    assert owner[1][1] == 0


def test_a_forked_child_frees_nothing_of_its_parent():
    for status, kept in run_endpoints("shm", 1, scenarios.drop_in_a_child):
        assert (status, kept) == (0, b"here")


def test_what_a_lost_peer_offered_is_let_go():
    before, after = run_endpoints("shm", 2, scenarios.lose_a_peer_that_offered)[0]
    assert (before, after) == (2, 1)


@pytest.mark.parametrize("transport", ["shm", "cma"])
def test_dropped_results_are_free_at_the_next_call(transport):
    writer, owner, idle = run_ranks(3, scenarios.drop_results, transport=transport)
    assert writer[1][0] - writer[0][0] >= 64 and writer[2][0] - writer[0][0] <= 1
    assert [mapped for _, mapped, _ in writer] == [0, 1, 0]
    assert [mapped for _, mapped, _ in owner] == [0, 1, 0]
    assert [mapped for _, mapped, _ in idle] == [0, 0, 0]
    for seen in (idle, writer):
        fds = [each for _, _, each in seen]
        assert max(fds) == fds[0]  # fewer is right: what is idle is given back


@pytest.mark.unsanitized
def test_no_descriptor_left_is_heard_on_all_ranks():
    said = [outcome[1] for outcome in outcomes_of(3, scenarios.offer_to_the_others)]
    assert all("ulimit -n" in one for one in said)


def test_reserving_memory_ends_with_ctrl_c():
    class Pressed(Exception):
        pass

    def press(number: int, frame: Any) -> None:
        raise Pressed

    previous = signal.signal(signal.SIGUSR1, press)
    pressed_at = []

    def press_soon() -> None:
        time.sleep(0.05)  # that this thread runs shows that others may
        pressed_at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=press_soon)
    try:
        thread.start()
        with pytest.raises(Pressed):
            for _ in range(100):
                _core.Region(2 << 30)
        assert time.monotonic() - pressed_at[0] < 0.5
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, previous)


def test_ctrl_c_ends_a_run_that_reserves_its_results():
    """With most of it unreserved; nothing is left, and the other rank hears why."""
    size = 2 << 30
    other, pressed = run_ranks(2, scenarios.interrupt_reserving, size)
    kind, _, reserved_bytes, held = pressed
    assert (kind, held) == ("KeyboardInterrupt", (0, 0)) and reserved_bytes < size // 2
    kind, text, _, held = other
    assert (kind, held) == ("TransportError", (0, 0))
    assert "rank 1 was lost: KeyboardInterrupt" in text


@pytest.mark.slow
def test_33_ranks_without_privileges_leave_nothing_and_wait_for_nobody():
    """Descriptors under way are counted per user, and at most 1024 are allowed then. First four of
    the ranks write to four others, then all have work; who has none holds nothing."""
    world, moves = 33, [("fsdp2(4)", "replicated(4)@4-7"), ("fsdp2(33)", "replicated(33)")]
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        pairs = [context.Pipe() for _ in range(world)]
        path = str(Path(folder) / "store")
        ranks = [
            context.Process(
                target=scenarios.as_nobody, args=(theirs, path, rank, world, moves), daemon=True
            )
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process in ranks:
            process.start()
        rounds = []
        for _ in moves:
            rounds.append([ours.recv() if ours.poll(60) else "hung" for ours, _ in pairs])
            for ours, _ in pairs:
                ours.send("go on")
        for process in ranks:
            process.join(10)
            process.kill()
    some, everyone = rounds
    assert some[:4] == [(0, 4, 0)] * 4  # they wrote into the results of four others
    assert some[4:8] == [(1, 1, 0)] * 4  # their own
    assert some[8:] == [(0, 0, 0)] * (world - 8)
    assert everyone == [(1, world, 0)] * world


def test_only_pairs_that_talk_have_mailboxes():
    first, second, silent = run_endpoints("shm", 3, scenarios.pages_of_mail)
    assert first == second == [1, 2] and silent == [2]
