"""What `hybridengine train` does when something goes wrong: exit code, words, nothing left."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rlhf_small_run import SMALL

from hybridengine.command import cli

pytestmark = [pytest.mark.python, pytest.mark.slow]

_STARTS_WITHIN_S = 120.0
_ENDS_WITHIN_S = 30.0


def _arguments(folder: Path, *overrides: str) -> list[str]:
    return [*SMALL, "trainer.ranks=2", f"run.dir={folder}", "run.name=run", *overrides]


def _command(folder: Path, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "hybridengine", "train", *_arguments(folder, *overrides)]


def _ended(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(folder, *overrides),
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_STARTS_WITHIN_S,
        check=False,
    )


def _interrupted(
    folder: Path, interrupt: Callable[[subprocess.Popen[str]], object]
) -> tuple[int, str, list[int]]:
    """Exit code and stderr of a long run that `interrupt` was done to after its second step, and
    the processes of it that are left."""
    process = subprocess.Popen(
        _command(folder, "trainer.steps=100000", "trainer.save_interval=1"),
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        metrics = folder / "run" / "metrics.jsonl"
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while not (metrics.exists() and '"step": 2,' in metrics.read_text()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        family = _descendants(process.pid)
        assert len(family) > 2
        interrupt(process)
        _, errors = process.communicate(timeout=_ENDS_WITHIN_S)
    finally:
        process.kill()
    return process.returncode, errors, _alive(family, within_s=_ENDS_WITHIN_S)


def _parents() -> dict[int, int]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it ended meanwhile
            continue
        if fields[0] != "Z":
            found[int(path.parent.name)] = int(fields[1])
    return found


def _descendants(root: int) -> list[int]:
    parents, found = _parents(), [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _alive(pids: list[int], within_s: float) -> list[int]:
    deadline = time.monotonic() + within_s
    while left := [pid for pid in pids if pid in _parents()]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.1)
    return []


def _kill_a_rank(process: subprocess.Popen[str]) -> None:
    ranks = [
        pid
        for pid in _descendants(process.pid)
        if b"RankProcess" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(ranks) == 2
    os.kill(max(ranks), signal.SIGKILL)


@pytest.mark.soak
def test_a_rank_that_dies_ends_the_run(tmp_path: Path) -> None:
    code, errors, left = _interrupted(tmp_path, _kill_a_rank)
    assert code == 3, errors
    last = [line for line in errors.splitlines() if line.startswith("error: ")][-1]
    assert "pool 'train'" in last and "died" in last and "host" in last
    assert left == []


@pytest.mark.soak
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    code, errors, left = _interrupted(tmp_path, lambda p: os.kill(p.pid, signal.SIGINT))
    assert code == 130, errors
    assert left == []
    # What it says last does go on, here for a step more.
    last = errors.splitlines()[-1]
    found = re.fullmatch(r"checkpoint at step (\d+); go on with: hybridengine train (.*)", last)
    assert found is not None, last
    done, arguments = int(found[1]), shlex.split(found[2])
    assert arguments[-2:] == ["run.name=run", "run.resume=true"]
    ended = _ended(tmp_path, *arguments, f"trainer.steps={done + 1}")
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] >= 1 and _whole(tmp_path)[-1].name == f"step_{done + 1:08d}"


def _whole(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("run/checkpoints/step_*/controller.json"))


@pytest.mark.soak
def test_a_run_that_is_killed_in_a_save_goes_on(tmp_path: Path) -> None:
    def kill_in_a_save(process: subprocess.Popen[str]) -> None:
        while not _whole(tmp_path) or all(map(_is_whole, _checkpoints(tmp_path))):
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)

    code, _, left = _interrupted(tmp_path, kill_in_a_save)
    assert code == -signal.SIGKILL and left == []
    done = int(_whole(tmp_path)[-1].name.removeprefix("step_"))
    ended = _ended(
        tmp_path, "run.resume=true", f"trainer.steps={done + 2}", "trainer.save_interval=1"
    )
    assert ended.returncode == 0, ended.stderr
    assert [path.name for path in _checkpoints(tmp_path)] == [f"step_{done + 2:08d}"]
    assert (tmp_path / "run" / "hf" / "model.safetensors").is_file()


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("run/checkpoints/step_*"))


def _is_whole(checkpoint: Path) -> bool:
    return (checkpoint / "controller.json").exists()


@pytest.mark.soak
def test_a_reward_that_raises(tmp_path: Path) -> None:
    """For some samples it ends the run if asked; for all of a step it always does."""
    for name, condition in (("some", "int(ground_truth) % 2"), ("all", "True")):
        (tmp_path / f"{name}.py").write_text(
            "def score(data_source, solution_str, ground_truth, extra_info=None):\n"
            f"    if {condition}:\n        raise ValueError('no such unit')\n    return 0.0\n"
        )
    rewards = ["reward.functions=[]", "reward.options={}", "trainer.steps=1"]
    some = [*rewards, f"reward.function={tmp_path}/some.py:score"]
    asked = _ended(tmp_path, *some, "reward.on_error=raise")
    every = _ended(
        tmp_path,
        *rewards,
        f"reward.function={tmp_path}/all.py:score",
        "trainer.eval_before=false",
    )
    for ended in (asked, every):
        assert ended.returncode == 2, ended.stderr
        last = [line for line in ended.stderr.splitlines() if line.startswith("error: ")][-1]
        assert "raised ValueError at" in last and "no such unit" in last and "chain_sum, " in last
    assert "rewards failed for all 20 samples" in every.stderr
    go_on = _ended(tmp_path, *some, "trainer.eval_before=false")
    assert go_on.returncode == 0, go_on.stderr
    assert "no such unit" in go_on.stderr and "\x1b" not in go_on.stderr
    assert go_on.stderr.count("samples have reward 0 since it failed") == 1  # for both ranks
    # The first line is the step; an evaluation comes behind it.
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert row["reward/mean"] == 0 and 0 < row["reward/errors"] < 20


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.gym.name=null", "data.train_files=[absent.parquet]"], "absent.parquet"),
        (["data.max_prompt_length=2"], "too long"),
        (["model.config={model_type: qwen7}"], "qwen7"),
        (["model.config={}", "model.path=/nowhere"], "/nowhere"),
        (["trainer.ranks=500"], "500 ranks"),
        (["actor.lr=fast"], "actor.lr is 'fast'"),
        (["reward.functions=[exct_match]"], "exact_match"),
        (["run.resume=true"], "no complete checkpoint"),
        (["rollout.tp_size=2", "trainer.ranks=3", "cluster.cpus_per_rank=0.1"], "tp_size"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], overrides: list[str], words: str
) -> None:
    assert cli.run(["train", *_arguments(tmp_path, *overrides)]) == 2
    errors = capfd.readouterr().err
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and words in lines[0], errors
    assert "Traceback" not in errors
    assert not (tmp_path / "run").exists()
