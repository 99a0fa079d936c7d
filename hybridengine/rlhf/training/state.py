"""state: checkpoints to go on from, and how a directory appears under its name only when complete.

A checkpoint to go on from holds shards, and any number of ranks can load it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

from hybridengine._core import UsageError
from hybridengine.rlhf.training.optimizer import ShardedAdamW

_COUNTS = "counts"  # updates and skipped of the optimizer


class NotWritten(Exception):
    """A directory could not be written. What lay there before still does, and nothing is left of
    the new one. Raised on every rank, so that none waits for another."""


def save_state(
    path: str | os.PathLike[str],
    module: nn.Module,
    optimizer: ShardedAdamW | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Writes weights and optimizer as the directory `path`, which is replaced if it is there;
    `progress` is called with every tensor.

    Collective over the default process group, if there is one; every rank sees the same directory.
    Throws NotWritten.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    state = _state(module, optimizer)
    options = {"planner": _told(DefaultSavePlanner, "resolve_data", progress), **_alone()}
    publish(Path(path), lambda scratch: save(state, checkpoint_id=scratch, **options))


def load_state(
    path: str | os.PathLike[str],
    module: nn.Module,
    optimizer: ShardedAdamW | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Reads what save_state wrote, with any number of ranks, into the same kind of model and
    optimizer. Collective like it. Throws UsageError where there is no such checkpoint."""
    from torch.distributed.checkpoint.state_dict_loader import load

    if not (Path(path) / ".metadata").is_file():
        raise UsageError(
            f"{os.fspath(path)!r} is no checkpoint to go on from: it has no .metadata. Give a "
            "directory that training wrote."
        )
    state = _state(module, optimizer)
    options = {"planner": _told(DefaultLoadPlanner, "commit_tensor", progress), **_alone()}
    load(state, checkpoint_id=path, **options)
    if optimizer is not None:
        optimizer.updates, optimizer.skipped = state["optimizer"][_COUNTS].tolist()
        optimizer.masters.write()


def _state(module: nn.Module, optimizer: ShardedAdamW | None) -> dict[str, Any]:
    """The tensors themselves: loading writes into them. Of narrow shards their masters."""
    weights = module.state_dict(keep_vars=True)
    if optimizer is None:
        return {"model": {name: each.detach() for name, each in weights.items()}}
    counts = torch.tensor([optimizer.updates, optimizer.skipped])
    return {
        "model": {name: optimizer.masters.of(each).detach() for name, each in weights.items()},
        "optimizer": {**optimizer.state_dict(), _COUNTS: counts},
    }


def _told(planner: type[Any], method: str, progress: Callable[[], None]) -> Any:
    """A planner of torch whose `method`, which it calls for each tensor, is told of."""
    made = planner()
    inner = getattr(made, method)

    def told(*args: Any) -> Any:
        progress()
        return inner(*args)

    setattr(made, method, told)
    return made


def _alone() -> dict[str, Any]:
    return {} if dist.is_initialized() else {"no_dist": True}


def publish(final: Path, *writes: Callable[[Path], None]) -> None:
    """All ranks write aside, one thing after the other, then rank 0 renames; an old directory goes
    only after that. Throws NotWritten on all where one failed."""
    scratch = final.with_name(final.name + ".partial")
    old = final.with_name(final.name + ".old")

    def prepare() -> None:
        final.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()  # fails where something else is in the way, which transformers would not

    def rename() -> None:
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
            final.rename(old)
        scratch.rename(final)
        shutil.rmtree(old, ignore_errors=True)

    first = not dist.is_initialized() or dist.get_rank() == 0
    try:
        _together(lambda: prepare() if first else None)
        for write in writes:
            _together(lambda write=write: write(scratch))  # type: ignore[misc]
        _together(lambda: rename() if first else None)
    except NotWritten:
        if first:
            shutil.rmtree(scratch, ignore_errors=True)
        raise


def _together(act: Callable[[], None]) -> None:
    """Does it on every rank, and throws NotWritten on all where it failed on one."""
    from torch.distributed.checkpoint.api import CheckpointException

    reason = None
    try:
        act()
    except CheckpointException as error:  # of all ranks; no Exception
        reason = line_of(next(iter(error.failures.values()))[0])
    except Exception as error:  # whatever a disk, or a model's files, make a library raise
        reason = line_of(error)
    reasons = [reason]
    if dist.is_initialized():
        reasons = [None] * dist.get_world_size()
        dist.all_gather_object(reasons, reason)
    failed = [each for each in reasons if each is not None]
    if failed:
        raise NotWritten(failed[0])


def line_of(error: BaseException) -> str:
    """What is wrong, in one line, with the file where it is known."""
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    return " ".join(str(error).split())[:300] or type(error).__name__
