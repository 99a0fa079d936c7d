"""checkpoints: what a run needs to go on where it stopped.

    <run>/checkpoints/step_00000012/   actor/  critic/  reference/  controller.json

A checkpoint is complete once controller.json is there, which is written last.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.trainer.placement import Roles

_STATE = "controller.json"


class Checkpoints:
    """Those of one run, of which the newest `trainer.keep_checkpoints` are kept."""

    def __init__(self, folder: Path, roles: Roles, config: Config) -> None:
        self._folder, self._keep = folder, config.trainer.keep_checkpoints
        groups = {"actor": roles.actor, "critic": roles.critic}
        if config.warmup.steps and config.reference.path is None:
            groups["reference"] = roles.reference  # it is no checkpoint's: the warm-up made it
        self._groups = {name: group for name, group in groups.items() if group is not None}

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Weights and optimizers of the roles, and the controller's `state` (JSON)."""
        target = self._folder / "checkpoints" / f"step_{step:08d}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name, group in self._groups.items():
            group.save(str(target / name))
        scratch = target / f"{_STATE}.tmp"
        scratch.write_text(json.dumps({"step": step, **state}))
        os.replace(scratch, target / _STATE)
        for old in complete_checkpoints(self._folder)[: -self._keep]:
            shutil.rmtree(old)

    def restore(self) -> dict[str, Any]:
        """Loads the newest, which there must be, into the roles and returns its state."""
        newest = newest_checkpoint(self._folder)
        assert newest is not None, "a check came first"
        for name, group in self._groups.items():
            group.restore(str(newest / name))
        state: dict[str, Any] = json.loads((newest / _STATE).read_text())
        return state


def complete_checkpoints(run: Path) -> list[Path]:
    """Of the run in this folder, the oldest first."""
    return sorted(path.parent for path in run.glob(f"checkpoints/step_*/{_STATE}"))


def newest_checkpoint(run: Path) -> Path | None:
    return next(reversed(complete_checkpoints(run)), None)


def step_of(checkpoint: Path) -> int:
    """After how many steps it was saved."""
    return int(checkpoint.name.removeprefix("step_"))
