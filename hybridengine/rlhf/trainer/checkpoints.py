"""checkpoints: what a run needs to go on where it stopped.

    <run>/checkpoints/step_00000012/   actor/  critic/  reference/  controller.json

A checkpoint is whole once controller.json is there, which is written last, and as long as the files
that it lists have their sizes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hybridengine.rlhf.trainer.failure import RunError
from hybridengine.rlhf.training.state import line_of
from hybridengine.rlhf.workers import WorkerGroup

_STATE = "controller.json"


class Checkpoints:
    """Those of one run, of which the newest `keep` are kept. `groups`: what each consists of."""

    def __init__(self, folder: Path, groups: Mapping[str, WorkerGroup], keep: int) -> None:
        self._folder, self._groups, self._keep = folder, groups, keep

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Weights and optimizers of the roles, and the controller's `state` (JSON). One of this
        step that is whole stays as it is.

        Throws RunError where it cannot be written; those from before are still there then.
        """
        target = self._folder / "checkpoints" / f"step_{step:08d}"
        if not fault_of(target):
            return
        try:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            reason = self._write(target, {"step": step, **state})
        except OSError as error:
            reason = line_of(error)
        if reason:
            shutil.rmtree(target, ignore_errors=True)  # the room may be what is missing
            raise RunError(f"the checkpoint of step {step} could not be written: {reason}")
        kept = whole_checkpoints(self._folder)[-self._keep :]
        for path in _all(self._folder):
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def restore(self) -> dict[str, Any]:
        """Loads the newest, which there must be, into the roles and returns its state."""
        newest = newest_checkpoint(self._folder)
        assert newest is not None, "a check came first"
        for name, group in self._groups.items():
            group.restore(str(newest / name))
        return state_of(newest)

    def _write(self, target: Path, state: dict[str, Any]) -> str:
        """Why it could not be written, nothing where it was."""
        for name, group in self._groups.items():
            reason: str = group.save(str(target / name))
            if reason:
                return reason
        files = sorted(path for path in target.rglob("*") if path.is_file())
        sizes = {str(path.relative_to(target)): _size(path) for path in files}
        scratch = target / f"{_STATE}.tmp"
        with scratch.open("w") as file:
            file.write(json.dumps({**state, "files": sizes}))
            file.flush()
            os.fsync(file.fileno())  # as the files before: it vouches for them
        os.replace(scratch, target / _STATE)
        return ""


def say_if_it_fails(save: Callable[[], None]) -> None:
    """In the middle of a run: what was learned since the last checkpoint is worth more in memory
    than lost, and there may be room again for the next one."""
    try:
        save()
    except RunError as error:
        sys.stderr.write(f"hybridengine: {error}; the run goes on\n")


def fault_of(checkpoint: Path) -> str:
    """What is wrong with a checkpoint, nothing where it is whole."""
    try:
        sizes = json.loads((checkpoint / _STATE).read_text())["files"]
        for name, size in sizes.items():
            found = _size(checkpoint / name)
            if found != size:
                return f"{name} has {found} bytes of {size}"
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        return "it was cut short" if missing == _STATE else f"{missing} is missing"
    except (OSError, ValueError, KeyError) as error:
        return f"{_STATE} does not read: {line_of(error)}"
    return ""


def state_of(checkpoint: Path) -> dict[str, Any]:
    """What the controller saved in a checkpoint that is whole."""
    state: dict[str, Any] = json.loads((checkpoint / _STATE).read_text())
    return state


def whole_checkpoints(run: Path) -> list[Path]:
    """Of the run in this folder, the oldest first."""
    return [path for path in _all(run) if not fault_of(path)]


def damaged_checkpoints(run: Path) -> dict[Path, str]:
    """Those that are not whole, with what is wrong, the oldest first."""
    return {path: fault for path in _all(run) if (fault := fault_of(path))}


def newest_checkpoint(run: Path) -> Path | None:
    return next(reversed(whole_checkpoints(run)), None)


def step_of(checkpoint: Path) -> int:
    """After how many steps it was saved."""
    return int(checkpoint.name.removeprefix("step_"))


def saved_at(checkpoint: Path) -> float:
    """When it became whole, in seconds since 1970."""
    return (checkpoint / _STATE).stat().st_mtime


def _all(run: Path) -> list[Path]:
    return sorted(run.glob("checkpoints/step_" + "[0-9]" * 8))


def _size(path: Path) -> int:
    """Of a file that another host may have written: opening it asks for what holds now."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_size
