"""state: checkpoints to go on from, and the HF checkpoint that others load.

A checkpoint to go on from holds shards, and any number of ranks can load it. Both kinds appear
under their name only when complete.
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

from hybridengine._core import UsageError
from hybridengine.rlhf.training.lora import merged_tensors
from hybridengine.rlhf.training.models import quiet_transformers
from hybridengine.rlhf.training.optimizer import ShardedAdamW

_COUNTS = "counts"  # updates and skipped of the optimizer


def save_state(
    path: str | os.PathLike[str], module: nn.Module, optimizer: ShardedAdamW | None = None
) -> None:
    """Writes weights and optimizer as the directory `path`, which is replaced if it is there.

    Collective over the default process group, if there is one; every rank sees the same directory.
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


def export_hf(module: Any, tokenizer: Any, path: str | os.PathLike[str]) -> None:
    """Writes the whole model, adapters merged, and `tokenizer` (unless None) as a HF checkpoint.

    Weights are gathered one by one and kept in the host memory of rank 0, which writes. Collective
    like save_state.
    """
    writes = not dist.is_initialized() or dist.get_rank() == 0
    whole: dict[str, torch.Tensor] = {}
    for name, tensor in merged_tensors(module).items():
        gathered = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if writes:
            whole[name] = gathered.detach().cpu()

    def write(directory: Path) -> None:
        if writes:
            with quiet_transformers():
                module.save_pretrained(directory, state_dict=whole)
            if tokenizer is not None:
                tokenizer.save_pretrained(directory)

    _publish(Path(path), write)


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
    first = not dist.is_initialized() or dist.get_rank() == 0
    if first:
        final.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(scratch, ignore_errors=True)
    _barrier()
    write(scratch)
    _barrier()
    if first:
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
            final.rename(old)
        scratch.rename(final)
        shutil.rmtree(old, ignore_errors=True)
    _barrier()


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
