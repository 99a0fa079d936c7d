"""state: checkpoints to go on from, and the HF checkpoint that others load.

A checkpoint to go on from holds shards, and any number of ranks can load it. Both kinds appear
under their name only when complete.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hybridengine._core import UsageError
from hybridengine.rlhf.training.lora import merged_tensors
from hybridengine.rlhf.training.models import quiet_transformers
from hybridengine.rlhf.training.optimizer import ShardedAdamW

_COUNTS = "counts"  # updates and skipped of the optimizer


class NotWritten(Exception):
    """A directory could not be written. What lay there before still does, and nothing is left of
    the new one. Raised on every rank, so that none waits for another."""


def save_state(
    path: str | os.PathLike[str], module: nn.Module, optimizer: ShardedAdamW | None = None
) -> None:
    """Writes weights and optimizer as the directory `path`, which is replaced if it is there.

    Collective over the default process group, if there is one; every rank sees the same directory.
    Throws NotWritten.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    state = _state(module, optimizer)
    _publish(Path(path), lambda scratch: save(state, checkpoint_id=scratch, **_alone()))


def load_state(
    path: str | os.PathLike[str], module: nn.Module, optimizer: ShardedAdamW | None = None
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
    load(state, checkpoint_id=path, **_alone())
    if optimizer is not None:
        optimizer.updates, optimizer.skipped = state["optimizer"][_COUNTS].tolist()


def export_hf(
    module: Any,
    tokenizer: Any,
    path: str | os.PathLike[str],
    dtype: torch.dtype | None = None,
) -> None:
    """Writes the whole model, adapters merged, and `tokenizer` (unless None) as a HF checkpoint.

    Weights are rounded to `dtype` (None: stay as they are), gathered one by one and kept in the
    host memory of rank 0, which writes. Collective like save_state. Throws NotWritten.
    """
    writes = not dist.is_initialized() or dist.get_rank() == 0
    whole: dict[str, torch.Tensor] = {}
    first_name: dict[int, str] = {}  # tied weights are gathered once, and stay one
    for name, tensor in merged_tensors(module).items():
        known = first_name.setdefault(id(tensor), name)
        if known == name:
            gathered = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            if writes:
                whole[name] = gathered.detach().to("cpu", dtype)
        elif writes:
            whole[name] = whole[known]

    _publish(
        Path(path),
        lambda scratch: write_hf(module, whole, tokenizer, scratch, dtype) if writes else None,
    )


def write_hf(
    module: Any,
    weights: dict[str, torch.Tensor],
    tokenizer: Any,
    directory: Path,
    dtype: torch.dtype | None = None,
) -> None:
    """`weights` with the config of `module`, which says `dtype` (None: the module's), the config of
    its generation, and `tokenizer` (unless None). Throws what transformers raises, e.g. ValueError
    for a generation config that it refuses."""
    with quiet_transformers():
        module.save_pretrained(directory, state_dict=weights)
        if dtype is not None:
            config = copy.deepcopy(module.config)
            config.dtype = dtype
            config.save_pretrained(directory)
    if tokenizer is not None:
        tokenizer.save_pretrained(directory)


def _state(module: nn.Module, optimizer: ShardedAdamW | None) -> dict[str, Any]:
    """The tensors themselves: loading writes into them."""
    state: dict[str, Any] = {"model": dict(module.state_dict())}
    if optimizer is not None:
        counts = torch.tensor([optimizer.updates, optimizer.skipped])
        state["optimizer"] = {**optimizer.state_dict(), _COUNTS: counts}
    return state


def _alone() -> dict[str, Any]:
    return {} if dist.is_initialized() else {"no_dist": True}


def _publish(final: Path, write: Callable[[Path], None]) -> None:
    """All ranks write aside, then rank 0 renames; an old directory goes only after that."""
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
        _together(lambda: write(scratch))
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
