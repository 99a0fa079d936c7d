"""The trainer in odd surroundings, and ended by signals as batch systems and terminals send them:
whatever ends it, in its start or in a step, no process and no file of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import odd_surroundings
import pytest
from rlhf_small_run import SMALL

pytestmark = pytest.mark.python

_STARTS_WITHIN_S = 120.0
_ENDS_WITHIN_S = 15.0


@pytest.mark.slow
def test_everything_odd_at_once(tmp_path: Path) -> None:
    last = ["trainer.ranks=1", "trainer.steps=1", f"run.dir={tmp_path}", "run.name=run"]
    done = odd_surroundings.run_in(tmp_path, ["train", *SMALL, *last], _STARTS_WITHIN_S)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 1
    assert "Traceback" not in done.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, so that Ray's sockets lie there too and what is left shows."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as path:
        yield Path(path)


def _processes_of(folder: Path) -> list[str]:
    """Command lines of all processes whose TMPDIR is `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_bytes().split(b"\0")
            if f"TMPDIR={folder}".encode() in variables:
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended meanwhile
            continue
    return [line for line in found if line]


def _left(folder: Path) -> list[str]:
    files = [path.name for path in folder.iterdir() if not path.name.startswith("torchinductor")]
    return files + _processes_of(folder)


def _until(condition: Callable[[], bool], within_s: float) -> bool:
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _signalled(
    command: list[str], folder: Path, when: Callable[[], bool], number: int, *, group: bool
) -> int:
    """The exit code of a command that is sent a signal once `when` holds."""
    before = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [sys.executable, "-m", "hybridengine", *command],
        env={**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert _until(lambda: when() or process.poll() is not None, _STARTS_WITHIN_S)
        assert process.poll() is None
        (os.killpg if group else os.kill)(process.pid, number)
        code = process.wait(_ENDS_WITHIN_S)
        assert _until(lambda: _left(folder) == [], _ENDS_WITHIN_S), _left(folder)
    finally:
        process.kill()
    # Others have files there too, for moments.
    assert _until(lambda: set(os.listdir("/dev/shm")) <= before, _ENDS_WITHIN_S)
    return code


@pytest.mark.soak
@pytest.mark.parametrize(
    ("number", "group"),
    [
        (signal.SIGTERM, True),
        (signal.SIGHUP, True),
        (signal.SIGINT, True),
        (signal.SIGTERM, False),
        (signal.SIGKILL, False),
    ],
)
def test_a_signal_in_a_step_leaves_nothing(
    tmp_path: Path, folder: Path, number: signal.Signals, group: bool
) -> None:
    names = [f"run.dir={tmp_path}", "run.name=run", "trainer.ranks=2", "trainer.steps=100000"]
    metrics = tmp_path / "run" / "metrics.jsonl"

    def in_a_step() -> bool:
        return metrics.exists() and '"step": 1,' in metrics.read_text()

    code = _signalled(["train", *SMALL, *names], folder, in_a_step, number, group=group)
    assert code == (-number if number == signal.SIGKILL else 128 + number)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_while_ray_starts_leaves_nothing(
    tmp_path: Path, folder: Path, number: signal.Signals
) -> None:
    names = [f"run.dir={tmp_path}", "run.name=run", "trainer.ranks=1"]

    def starting() -> bool:
        return any("gcs_server" in line for line in _processes_of(folder))

    code = _signalled(["train", *SMALL, *names], folder, starting, number, group=True)
    assert code == (-number if number == signal.SIGKILL else 128 + number)


@pytest.mark.soak
def test_a_signal_to_the_fit_of_a_reward_model_leaves_nothing(tmp_path: Path, folder: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "x"} for n in range(9)]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = next(each for each in SMALL if each.startswith("model.config="))
    command = ["train-reward", model, f"data.train_files=[{pairs}]", "trainer.steps=100000"]
    command += ["data.train_batch_size=4", "cluster.cpus_per_rank=0.5", "trainer.ranks=1"]
    command += [f"run.dir={tmp_path}", "run.name=run", "trainer.loggers=[jsonl]"]
    metrics = tmp_path / "run" / "metrics.jsonl"

    def in_a_step() -> bool:
        return metrics.exists() and '"step": 1,' in metrics.read_text()

    code = _signalled(command, folder, in_a_step, signal.SIGTERM, group=True)
    assert code == 128 + signal.SIGTERM
