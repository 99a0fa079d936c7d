"""run_local: results, events, failures of ranks, and that nothing outlives its caller."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import launch_scenarios as scenarios
import pytest

from hybridengine import TransportError, UsageError
from hybridengine.launch import RankDied, RankFailed, end_fork_server, run_local, tell

pytestmark = pytest.mark.python


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def wait_until(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


@pytest.mark.parametrize("world", [1, 2, 5])
def test_results_come_by_rank(world):
    expected = [10 + rank for rank in range(world)]
    assert run_local(world, scenarios.add_ranks, 10) == [expected] * world


def test_a_large_result_arrives():
    assert [len(each) for each in run_local(3, scenarios.large_result)] == [0, 3_000_001, 0]


def test_events_reach_the_caller_in_order():
    events = []
    run_local(2, scenarios.tell_twice, on_event=lambda rank, event: events.append((rank, event)))
    for rank in range(2):
        own = [event for sender, event in events if sender == rank]
        assert own == [("rank", rank), {"odd": [1.5, None]}]


def test_tell_outside_of_a_rank_does_nothing():
    tell("nobody hears this")


def test_each_launch_has_a_secret_of_its_own(monkeypatch):
    monkeypatch.setenv("HYBRIDENGINE_TOKEN", "inherited")
    first = run_local(2, scenarios.show_environment, "HYBRIDENGINE_TOKEN")
    second = run_local(2, scenarios.show_environment, "HYBRIDENGINE_TOKEN")
    assert first[0] == first[1] != second[0] == second[1]
    assert len(first[0]) == 32
    given = run_local(1, scenarios.show_environment, "HYBRIDENGINE_TOKEN", token="x1")
    assert given == ["x1"]
    assert os.environ["HYBRIDENGINE_TOKEN"] == "inherited"


def test_the_secret_is_on_no_command_line():
    assert "x-y-z" not in run_local(1, scenarios.show_command_line, token="x-y-z")[0]


def test_ranks_see_the_callers_environment_of_now(monkeypatch):
    for value in ("1", "2"):
        monkeypatch.setenv("SOME_NAME", value)
        assert run_local(1, scenarios.show_environment, "SOME_NAME") == [value]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert run_local(1, scenarios.show_environment, "OMP_NUM_THREADS") == ["1"]
    assert "OMP_NUM_THREADS" not in os.environ


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("usage", UsageError, "my words"),
        ("value", ValueError, "my words"),
        ("transport", TransportError, "my words"),
        ("unpicklable", RankFailed, "rank 1 raised Unpicklable: "),
    ],
)
def test_the_error_of_a_rank_is_raised_with_its_traceback(kind, error, words):
    with pytest.raises(error) as caught:
        run_local(3, scenarios.raise_on_one, kind)
    assert type(caught.value) is error
    assert str(caught.value).startswith(words)
    assert "on rank 1:" in caught.value.__notes__[0]
    assert "raise_on_one" in caught.value.__notes__[0]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_rank_is_named_though_others_complain_too(rank):
    began = time.monotonic()
    with pytest.raises(RankDied, match=f"rank {rank} died: SIGKILL") as caught:
        run_local(3, scenarios.kill_one, rank)
    assert (caught.value.rank, caught.value.signal) == (rank, signal.SIGKILL)
    assert time.monotonic() - began < 8


def test_a_rank_that_leaves_is_named_with_its_exit_code():
    with pytest.raises(RankDied, match="rank 0 died: exit code 7") as caught:
        run_local(2, scenarios.leave_early)
    assert caught.value.signal is None


def test_a_launch_after_a_failed_one_works_and_leaves_no_folder(monkeypatch):
    with tempfile.TemporaryDirectory() as folder:  # where nobody else launches
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with pytest.raises(RankDied):
            run_local(2, scenarios.kill_one, 1)
        assert run_local(2, scenarios.add_ranks, 0) == [[0, 1]] * 2
        assert list(Path(folder).glob("hybridengine.*")) == []


def test_a_launch_after_the_end_of_the_fork_server_starts_another():
    assert run_local(1, scenarios.add_ranks, 1) == [[1]]
    end_fork_server()
    assert run_local(2, scenarios.add_ranks, 1) == [[1, 2]] * 2


@pytest.mark.parametrize("world", [0, -1, True, 2.0, "2", None])
def test_a_bad_world_is_an_error(world):
    with pytest.raises(UsageError, match="whole number of ranks"):
        run_local(world, scenarios.add_ranks, 0)


def test_what_ranks_cannot_be_given_is_an_error_before_any_starts():
    with pytest.raises(UsageError, match="top level of a module"):
        run_local(1, lambda comm: None)
    with pytest.raises(UsageError, match="top level of a module"):
        run_local(1, scenarios.add_ranks, open(os.devnull))  # noqa: SIM115


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ranks_do_not_outlive_their_caller(tmp_path, number):
    caller = subprocess.Popen(
        [sys.executable, scenarios.__file__, str(tmp_path)],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert wait_until(lambda: len(list(tmp_path.iterdir())) == 3, 30)
        pids = [int(path.name) for path in tmp_path.iterdir()]
        assert all(alive(pid) for pid in pids)
        caller.send_signal(number)
        assert wait_until(lambda: not any(alive(pid) for pid in pids), 2)
        assert caller.wait(5) != 0
    finally:
        os.killpg(caller.pid, signal.SIGKILL) if caller.poll() is None else None
        caller.stderr.close()
