"""Checkpoints of a run: one that is cut short, damaged or refused by the disk costs no other."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hybridengine import UsageError
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.trainer.checkpoints import (
    Checkpoints,
    newest_checkpoint,
    say_if_it_fails,
    step_of,
)
from hybridengine.rlhf.trainer.failure import NotExported, RunError
from hybridengine.rlhf.trainer.resume import check_resumable, check_steps_left, how_to_go_on

pytestmark = pytest.mark.python


class _Group:
    """What a checkpoint needs of a group of ranks."""

    def __init__(self, reason: str = "") -> None:
        self.reason, self.restored = reason, ""

    def save(self, folder: str) -> str:
        Path(folder).mkdir()
        (Path(folder) / "shard").write_bytes(b"x" * (50 if self.reason else 100))
        return self.reason

    def restore(self, folder: str) -> None:
        self.restored = folder


def _checkpoints(run: Path, keep: int = 1, group: Any = None) -> Checkpoints:
    return Checkpoints(run, {"actor": _Group() if group is None else group}, keep)


def _left(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_the_newest_are_kept_and_what_was_cut_short_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step_00000005").mkdir(parents=True)
    for step in (10, 20, 30):
        _checkpoints(tmp_path, keep=2).save(step, {"kl": 0.5})
    assert _left(tmp_path) == ["step_00000020", "step_00000030"]
    group = _Group()
    assert _checkpoints(tmp_path, group=group).restore()["kl"] == 0.5
    assert group.restored.endswith("step_00000030/actor")


@pytest.mark.parametrize("again", [30, 20], ids=["another step", "the step that is there"])
def test_a_full_disk_costs_no_checkpoint_that_was_there(tmp_path: Path, again: int) -> None:
    _checkpoints(tmp_path).save(20, {})
    full = _checkpoints(tmp_path, group=_Group("No space left on device"))
    if again == 20:  # as at the end of a run whose last step was just saved
        full.save(20, {})
    else:
        with pytest.raises(RunError, match="of step 30 could not be written: No space left"):
            full.save(30, {})
    assert _left(tmp_path) == ["step_00000020"]
    check_resumable(tmp_path)


def test_a_run_goes_on_behind_a_checkpoint_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = _checkpoints(tmp_path, group=_Group("No space left on device"))
    say_if_it_fails(lambda: full.save(30, {}))
    assert capsys.readouterr().err == (
        "hybridengine: the checkpoint of step 30 could not be written: No space left on device; "
        "the run goes on\n"
    )


def test_a_controller_that_cannot_write_costs_none_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _checkpoints(tmp_path).save(20, {})

    def refuse(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunError, match="No space left on device"):
        _checkpoints(tmp_path).save(30, {})
    assert _left(tmp_path) == ["step_00000020"]


_ENDLESS = """
import sys, time
from pathlib import Path
from hybridengine.rlhf.trainer.checkpoints import Checkpoints
class Slow:
    def save(self, folder):
        Path(folder).mkdir()
        for part in range(10):
            (Path(folder) / str(part)).write_bytes(b"x" * 100000)
            time.sleep(0.005)
        return ""
checkpoints = Checkpoints(Path(sys.argv[1]), {"actor": Slow()}, 1)
for step in range(1, 1000000):
    checkpoints.save(step, {})
    print(step, flush=True)
"""


def _halves(run: Path) -> list[Path]:
    """A file that is written in the middle of a save, of each that got so far."""
    return list(run.glob("checkpoints/step_*/actor/5"))


def test_a_kill_in_the_middle_of_a_save_costs_only_that_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _ENDLESS, str(tmp_path)], cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    for _ in range(3):
        saved = int(process.stdout.readline())
    while all((path.parent.parent / "controller.json").exists() for path in _halves(tmp_path)):
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    saved = int((process.communicate()[0].split() or [saved])[-1])
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and step_of(newest) in (saved, saved + 1)
    check_resumable(tmp_path)
    if _left(tmp_path)[-1] != newest.name:
        said = capsys.readouterr().err
        assert "is damaged (it was cut short); going on from step" in said
    _checkpoints(tmp_path).save(saved + 2, {})
    assert _left(tmp_path) == [f"step_{saved + 2:08d}"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: (path / "actor" / "shard").write_bytes(b"x" * 60), "60 bytes of 100"),
        (lambda path: (path / "actor" / "shard").unlink(), "shard is missing"),
        (lambda path: (path / "controller.json").write_text('{"st'), "controller.json does not"),
        (lambda path: (path / "controller.json").write_text(""), "controller.json does not read"),
        (lambda path: (path / "controller.json").unlink(), "it was cut short"),
    ],
    ids=["short file", "lost file", "short state", "empty state", "no state"],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, damage: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (20, 40):
        _checkpoints(tmp_path, keep=2).save(step, {"at": step})
    damage(tmp_path / "checkpoints" / "step_00000040")
    check_resumable(tmp_path)
    said = capsys.readouterr().err
    assert "step_00000040 is damaged" in said and words in said
    assert said.endswith("; going on from step 20\n")
    assert _checkpoints(tmp_path).restore()["at"] == 20
    # The next one is kept, not the damaged one, though that has the higher number.
    _checkpoints(tmp_path).save(25, {"at": 25})
    assert _left(tmp_path) == ["step_00000025"]


def test_where_no_checkpoint_is_whole_the_damage_is_named(tmp_path: Path) -> None:
    _checkpoints(tmp_path).save(20, {})
    (tmp_path / "checkpoints" / "step_00000020" / "controller.json").unlink()
    with pytest.raises(UsageError, match=r"no complete checkpoint; step_00000020: it was cut sho"):
        check_resumable(tmp_path)


def test_a_run_that_is_done_goes_on_only_for_what_it_lacks(tmp_path: Path) -> None:
    _checkpoints(tmp_path).save(20, {})
    config = load_config(["preset=demo", "trainer.steps=20", "run.name=a", "run.resume=true"])
    check_steps_left(config, tmp_path, exports=False)  # killed before its summary
    (tmp_path / "summary.json").touch()
    check_steps_left(config, tmp_path, exports=True)
    with pytest.raises(UsageError, match=r"has done 20 steps, and trainer\.steps is 20"):
        check_steps_left(config, tmp_path, exports=False)
    exported = tmp_path / "hf" / "config.json"
    exported.parent.mkdir()
    exported.touch()
    with pytest.raises(
        UsageError, match=r"has done 20 steps.* or remove its hf/ to export it again"
    ):
        check_steps_left(config, tmp_path, exports=True)
    os.utime(exported, (1e9, 1e9))  # of before the run was resumed
    check_steps_left(config, tmp_path, exports=True)


def test_the_command_that_goes_on_is_the_one_that_was_typed(tmp_path: Path) -> None:
    run = tmp_path / "demo-1"
    config = load_config(["preset=demo", "trainer.steps=60"])
    typed = ["hybridengine", "train", "data.gym.options={a: 1}", "run.resume=false"]
    assert how_to_go_on(config, run, typed, KeyboardInterrupt()) == (
        f"{run} has no checkpoint to go on from; trainer.save_interval saves them, and is 0"
    )
    often = load_config(["preset=demo", "trainer.save_interval=30"])
    assert how_to_go_on(often, run, typed, KeyboardInterrupt()).endswith("_interval is 30 steps")
    assert how_to_go_on(config, run, typed, UsageError("the reward failed for all")) == ""
    _checkpoints(run).save(20, {})
    assert how_to_go_on(config, run, typed, KeyboardInterrupt()) == (
        "checkpoint at step 20; go on with: hybridengine train 'data.gym.options={a: 1}' "
        "run.name=demo-1 run.resume=true"
    )
    # An export alone: also after a time limit, which would let the steps go on.
    assert how_to_go_on(config, run, ["hybridengine", "train"], NotExported("no room")) == (
        "checkpoint at step 20; export it with: hybridengine train run.name=demo-1 "
        "run.resume=true trainer.steps=20"
    )


def test_the_state_lists_what_it_vouches_for(tmp_path: Path) -> None:
    _checkpoints(tmp_path).save(20, {"kl": 1.0})
    state = json.loads((tmp_path / "checkpoints" / "step_00000020" / "controller.json").read_text())
    assert state == {"step": 20, "kl": 1.0, "files": {"actor/shard": 100}}
