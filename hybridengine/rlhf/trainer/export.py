"""export: hf/ at the end of a run, without which its steps are not lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hybridengine.rlhf.trainer.failure import NotExported, RunError
from hybridengine.rlhf.workers import WorkerGroup


def export(group: WorkerGroup, run: Path, save: Callable[[], None]) -> None:
    """The model of `group` as `<run>/hf`. Where that cannot be written, `save` keeps a checkpoint,
    from which the run exports again when it is resumed. Throws NotExported then, RunError where
    there is no checkpoint either."""
    reason = group.export(str(run / "hf"))
    if not reason:
        return
    try:
        save()
    except RunError as error:
        raise RunError(f"{run}/hf could not be written: {reason}. Also: {error}") from None
    raise NotExported(f"{run}/hf could not be written: {reason}; its weights are in the checkpoint")
