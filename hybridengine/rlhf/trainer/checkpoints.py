"""checkpoints: what a run needs to go on where it stopped.

    <run>/checkpoints/step_00000012/   actor/  critic/  controller.json

A checkpoint is complete once controller.json is there, which is written last.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.trainer.placement import Roles

_STATE = "controller.json"


class Checkpoints:
    """Those of one run, of which the newest `keep` are kept."""

    def __init__(self, folder: Path, roles: Roles, keep: int) -> None:
        self._folder, self._roles, self._keep = folder / "checkpoints", roles, keep

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Weights and optimizers of the roles that train, and the controller's `state` (JSON)."""
        target = self._folder / f"step_{step:08d}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        self._roles.actor.save(str(target / "actor"))
        if self._roles.critic is not None:
            self._roles.critic.save(str(target / "critic"))
        scratch = target / f"{_STATE}.tmp"
        scratch.write_text(json.dumps({"step": step, **state}))
        os.replace(scratch, target / _STATE)
        for old in self._complete()[: -self._keep]:
            shutil.rmtree(old)

    def restore(self) -> dict[str, Any]:
        """Loads the newest into the roles and returns its state. Throws UsageError if there is
        none."""
        complete = self._complete()
        if not complete:
            raise UsageError(
                f"run.resume=true, but {self._folder} has no complete checkpoint. Set run.name to "
                "a run that saved one (trainer.save_interval), or leave run.resume out."
            )
        newest = complete[-1]
        self._roles.actor.restore(str(newest / "actor"))
        if self._roles.critic is not None:
            self._roles.critic.restore(str(newest / "critic"))
        state: dict[str, Any] = json.loads((newest / _STATE).read_text())
        return state

    def _complete(self) -> list[Path]:
        return sorted(path.parent for path in self._folder.glob(f"step_*/{_STATE}"))
