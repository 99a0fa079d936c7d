"""Ranks that die, raise, stop or hang: one error that names the cause, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rlhf_workers_scenarios
from rlhf_workers_scenarios import Worker

from hybridengine import TransportError, UsageError
from hybridengine.rlhf.config import schema
from hybridengine.rlhf.workers import (
    Cluster,
    Pool,
    PoolSpec,
    WorkerError,
    WorkerGroup,
    create_pools,
)
from hybridengine.rlhf.workers.failure import ECHO, RAISED, Failure

pytestmark = [pytest.mark.python, pytest.mark.slow]  # real kills; every test starts new ranks

_CPUS = 3
_TIMEOUT_S = 2.0  # of a rank without progress
_LIMIT_S = 15.0  # for what takes a second or two on an idle machine


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start(schema.Cluster(timeout_s=_TIMEOUT_S), num_cpus=_CPUS) as cluster:
        yield cluster


@pytest.fixture
def worker(cluster: Cluster) -> Iterator[WorkerGroup]:
    pool = Pool.create(cluster, "train", 2)
    yield pool.start_role("worker", Worker)
    pool.close()
    _expect_free(cluster)


def _until(condition: Callable[[], bool], seconds: float = _LIMIT_S) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def _expect_free(cluster: Cluster) -> None:
    assert _until(lambda: cluster.available()["CPU"] == _CPUS), cluster.available()


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and "State:\tZ" not in _status(pid)


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "State:\tZ"


def _pids(group: WorkerGroup) -> list[int]:
    return [each["pid"] for each in group.process()]


def _descendants(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    children = [int(c) for task in tasks.iterdir() for c in (task / "children").read_text().split()]
    return children + [each for child in children for each in _descendants(child)]


def _expect_gone(pids: list[int]) -> None:
    assert _until(lambda: not any(_alive(pid) for pid in pids)), pids


@pytest.mark.parametrize(
    ("method", "how", "words"),
    [
        ("fail_on_1", "kill", "died"),
        ("fail_on_1_in_engine", "exit", "died"),
        ("fail_on_1_in_engine", "value", "raised in fail_on_1_in_engine: ValueError"),
        ("fail_on_1", "stop", "does not answer for 2 s in fail_on_1"),
        ("fail_on_1", "sleep", r"made no progress for 2\.\d s in fail_on_1 .at .*, in _fail"),
    ],
)
def test_the_rank_that_failed_is_named_and_all_are_ended(
    cluster: Cluster, worker: WorkerGroup, method: str, how: str, words: str
) -> None:
    pids, host = _pids(worker), worker.pool.hosts[1]
    start = time.monotonic()
    with pytest.raises(WorkerError, match=words) as caught:
        getattr(worker, method)(how)
    assert time.monotonic() - start < _LIMIT_S
    error = caught.value
    assert isinstance(error, TransportError)
    assert (error.role, error.pool, error.rank, error.host) == ("worker", "train", 1, host)
    assert str(error).startswith(f"rank 1 of pool 'train' (role worker, host {host}) ")
    _expect_gone(pids)
    _expect_free(cluster)
    with pytest.raises(WorkerError) as again:
        worker.first()
    assert again.value is error
    if how == "value":
        _expect_line_and_trace(error)


def _expect_line_and_trace(error: WorkerError) -> None:
    scenarios = Path(rlhf_workers_scenarios.__file__)
    lines = scenarios.read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "the loss is not finite" in text)
    expected = f"ValueError: the loss is not finite (at {scenarios.name}:{line}, in _fail)"
    assert expected in str(error)
    assert "Traceback" in error.__notes__[0] and "fail_on_1" in error.__notes__[0]


def test_wrong_usage_found_by_a_rank_keeps_its_words(cluster: Cluster, worker: WorkerGroup) -> None:
    pids = _pids(worker)
    with pytest.raises(UsageError) as caught:
        worker.fail_on_1("usage")
    assert str(caught.value) == "row 3 of train.jsonl has no prompt. Add one."
    _expect_gone(pids)
    _expect_free(cluster)


def test_a_rank_that_gets_on_may_take_longer_than_the_limit(cluster: Cluster) -> None:
    """And so may another one that waits for it."""
    pool = Pool.create(cluster, "train", 2)
    worker = pool.start_role("worker", Worker)
    assert worker.slow_but_alive(_TIMEOUT_S * 1.7) == [0, 1]
    pool.close()
    with pytest.raises(UsageError, match="pool 'train' is closed"):
        worker.first()
    _expect_free(cluster)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("unpicklable", r"raised in unpicklable: TypeError: .*generator"),
        ("forget_summary", r"raised in forget_summary: TypeError: .*returned a Tensor"),
    ],
)
def test_results_that_cannot_be_sent(cluster: Cluster, method: str, words: str) -> None:
    worker = Pool.create(cluster, "train", 1).start_role("worker", Worker)
    with pytest.raises(WorkerError, match=words):
        getattr(worker, method)()
    _expect_free(cluster)


def test_a_death_in_another_pool_ends_the_call_at_once(cluster: Cluster) -> None:
    """B25, second run: a rank of the rollout is killed after it was placed. The error names its
    role within 30 s, and all places are given back."""
    pools = create_pools(cluster, {"train": PoolSpec(1), "rollout": PoolSpec(2)})
    trains = pools["train"].start_role("actor", Worker)
    rollout = pools["rollout"].start_role("engine", Worker)
    pids = _pids(trains) + _pids(rollout)
    pending = trains.slow_but_alive.remote(60.0)
    os.kill(pids[2], signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(WorkerError, match="died") as caught:
        pending.result()
    assert time.monotonic() - start < _LIMIT_S
    error = caught.value
    assert (error.role, error.pool, error.rank) == ("engine", "rollout", 1)
    _expect_gone(pids)
    _expect_free(cluster)
    with pytest.raises(WorkerError, match="died"):
        rollout.first()


def test_a_role_that_does_not_start(cluster: Cluster) -> None:
    pool = Pool.create(cluster, "train", 1)
    with pytest.raises(WorkerError, match="raised in __init__: ValueError: no such model"):
        pool.start_role("worker", Worker, "raise in __init__")
    _expect_free(cluster)


@pytest.mark.parametrize(
    ("error", "distance"),
    [
        (TransportError("rank 1 died"), ECHO),
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:534] Connection closed by peer"), ECHO),
        (RuntimeError("shape mismatch"), RAISED),
        (ValueError("gloo/transport"), RAISED),
    ],
)
def test_echoes_of_a_failure_are_told_from_its_cause(error: Exception, distance: int) -> None:
    assert Failure.of(error, "update").distance == distance


@pytest.mark.parametrize(
    ("number", "to_group", "returncodes"),
    [
        (signal.SIGINT, True, {-signal.SIGINT}),  # as a terminal does: to every process
        # Inside of a call of Ray's it makes SystemExit(1) of any other.
        (signal.SIGTERM, False, {1, 128 + signal.SIGTERM}),
        (signal.SIGKILL, False, {-signal.SIGKILL}),
        # As a batch system does; less is left to the processes themselves than above.
        pytest.param(*(signal.SIGTERM, True, {1, 128 + signal.SIGTERM}), marks=pytest.mark.soak),
        pytest.param(*(signal.SIGKILL, True, {-signal.SIGKILL}), marks=pytest.mark.soak),
    ],
)
def test_the_end_of_the_controller_ends_everything(
    tmp_path: Path, number: signal.Signals, to_group: bool, returncodes: set[int]
) -> None:
    # Short, so that sockets lie below it; a folder of its own shows what is left.
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    code = "import sys, rlhf_workers_scenarios as s; s.controller(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path)]
    process = subprocess.Popen(
        command,
        env=os.environ | {"TMPDIR": str(folder)},
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert _until(lambda: (tmp_path / "pids").exists(), 120.0)
        ranks = {int(pid) for pid in (tmp_path / "pids").read_text().split()}
        everything = _descendants(process.pid)
        assert ranks < set(everything)
        (os.killpg if to_group else os.kill)(process.pid, number)
        assert process.wait(timeout=_LIMIT_S) in returncodes
        _expect_gone(everything)
        assert _until(lambda: os.listdir(folder) == [], _LIMIT_S)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)
