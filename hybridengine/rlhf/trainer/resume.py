"""resume: whether a run can go on from its folder, and the words for how."""

from __future__ import annotations

import glob
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hybridengine._core import UsageError
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.trainer.checkpoints import (
    damaged_checkpoints,
    newest_checkpoint,
    saved_at,
    step_of,
)
from hybridengine.rlhf.trainer.failure import NotExported


def check_resumable(folder: Path) -> None:
    """Throws UsageError where a run is to go on that saved nothing. Names on stderr the checkpoints
    that are damaged and newer than the one to go on from."""
    newest, damaged = newest_checkpoint(folder), damaged_checkpoints(folder)
    if newest is None:
        reasons = [f"; {path.name}: {fault}" for path, fault in damaged.items()]
        raise UsageError(
            f"run.resume=true, but {folder}/checkpoints has no complete checkpoint"
            f"{''.join(reasons)}. {_elsewhere(folder)}Set run.name to a run that saved one "
            "(trainer.save_interval), or leave run.resume out."
        )
    for path, fault in damaged.items():
        if path.name > newest.name:
            sys.stderr.write(
                f"hybridengine: {path} is damaged ({fault}); going on from step {step_of(newest)}\n"
            )


def check_steps_left(config: Config, folder: Path, *, exports: bool) -> None:
    """Throws UsageError where the run to go on is done. `exports`: whether it is to leave hf/."""
    newest, steps = newest_checkpoint(folder), config.trainer.steps
    assert newest is not None and steps is not None, "both were set before"
    done = step_of(newest)
    last = ["summary.json", *(["hf/config.json"] if exports else [])]
    if done < steps or (done == steps and not all(_is_of(newest, folder / each) for each in last)):
        return
    again = ", or remove its hf/ to export it again" if exports and done == steps else ""
    raise UsageError(
        f"run.resume=true, but {folder} has done {done} steps, and trainer.steps is {steps}. "
        f"Set trainer.steps to more{again}."
    )


def _is_of(checkpoint: Path, file: Path) -> bool:
    """Whether it was written behind this checkpoint: an older one is of before a resume."""
    return file.exists() and file.stat().st_mtime >= saved_at(checkpoint)


def how_to_go_on(config: Config, folder: Path, command: Sequence[str], error: BaseException) -> str:
    """What to type after a run that `error` ended. `command`: what was typed for it. Nothing where
    the call was wrong from its first steps on."""
    newest, interval = newest_checkpoint(folder), config.trainer.save_interval
    if newest is None:
        if isinstance(error, UsageError):
            return ""
        why = f"is {interval} steps" if interval else "saves them, and is 0"
        return f"{folder} has no checkpoint to go on from; trainer.save_interval {why}"
    done = step_of(newest)
    more = {"run.name": folder.name, "run.resume": "true"}
    if isinstance(error, NotExported):
        more["trainer.steps"] = str(done)  # no more than that: a time limit may have ended it
    words = [word for word in command if word.partition("=")[0] not in more]
    words += [f"{key}={value}" for key, value in more.items()]
    what = "export it with" if isinstance(error, NotExported) else "go on with"
    return f"checkpoint at step {done}; {what}: {shlex.join(words)}"


def _elsewhere(folder: Path) -> str:
    """The runs of that name that were moved aside, and have what is asked for."""
    others = sorted(folder.parent.glob(f"{glob.escape(folder.name)}.[0-9]*"))
    newest = {path: newest_checkpoint(path) for path in others}
    found = {path: step_of(each) for path, each in newest.items() if each is not None}
    if not found:
        return ""
    listed = ", ".join(f"{path} has one of step {step}" for path, step in found.items())
    return f"{listed}: go on there with run.name={max(found).name}. "
