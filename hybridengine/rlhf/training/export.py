"""export: the HF checkpoint that others load, written a weight at a time.

Not what training goes on from: that is state.py's. No rank ever holds more than one whole weight.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
import torch.distributed as dist

from hybridengine.checkpoint import TensorRow, write_checkpoint
from hybridengine.rlhf.training.lora import merged_tensors
from hybridengine.rlhf.training.masters import Masters
from hybridengine.rlhf.training.models import quiet_transformers
from hybridengine.rlhf.training.state import publish
from hybridengine.tensors import dtype_name


def export_hf(
    module: Any,
    tokenizer: Any,
    path: str | os.PathLike[str],
    dtype: torch.dtype | None = None,
    *,
    masters: Masters | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Writes the whole model, adapters merged, and `tokenizer` (unless None) as a HF checkpoint.

    Weights, or their `masters`, are rounded once to `dtype` (None: stay as they are), gathered one
    by one and written by rank 0 as they come; `progress` is called with each. Collective like
    save_state. Throws NotWritten.
    """
    tensors = _once(module, masters)
    writes = not dist.is_initialized() or dist.get_rank() == 0

    def write_weights(scratch: Path) -> None:
        gathered = _gathered(tensors, dtype, progress)
        try:
            if writes:
                parts = ((n, part) for each in gathered for n, part in _stored(module, *each))
                rows = _rows(module, tensors, dtype)
                write_checkpoint(scratch, rows, (_bytes_of(part) for _, part in parts))
        finally:  # where a disk refuses a part the other ranks still gather
            for _ in gathered:
                pass

    publish(
        Path(path),
        lambda scratch: write_hf(module, tokenizer, scratch, dtype) if writes else None,
        write_weights,
    )


def write_hf(
    module: Any, tokenizer: Any, directory: Path, dtype: torch.dtype | None = None
) -> None:
    """All but the weights: the config of `module`, which says `dtype` (None: the module's), the
    config of its generation, and `tokenizer` (unless None). Throws what transformers raises, e.g.
    ValueError for a generation config that it refuses."""
    with quiet_transformers():
        module.save_pretrained(directory, state_dict={})
        if dtype is not None:
            config = copy.deepcopy(module.config)
            config.dtype = dtype
            config.save_pretrained(directory)
    if tokenizer is not None:
        tokenizer.save_pretrained(directory)


def _once(module: Any, masters: Masters | None) -> dict[str, torch.Tensor]:
    """What is written, by name; tied weights under the first of theirs."""
    first: dict[int, str] = {}
    merged = merged_tensors(module)
    kept = {name: each for name, each in merged.items() if first.setdefault(id(each), name) == name}
    return {name: each if masters is None else masters.of(each) for name, each in kept.items()}


def _gathered(
    tensors: dict[str, torch.Tensor], dtype: torch.dtype | None, progress: Callable[[], None]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each weight whole on the host of every rank, until the next one is asked for. Collective."""
    for name, tensor in tensors.items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        progress()
        yield name, whole.detach().to("cpu", dtype)


def _rows(
    module: Any, tensors: dict[str, torch.Tensor], dtype: torch.dtype | None
) -> list[TensorRow]:
    """What the files will hold, told without a weight."""
    empty = {
        name: torch.empty(each.shape, dtype=dtype or each.dtype, device="meta")
        for name, each in tensors.items()
    }
    parts = [part for name, each in empty.items() for part in _stored(module, name, each)]
    return [(name, tuple(each.shape), dtype_name(each.dtype)) for name, each in parts]


def _stored(module: Any, name: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """A weight as checkpoints of its architecture keep it, e.g. experts apart."""
    from transformers.core_model_loading import revert_weight_conversion

    return list(revert_weight_conversion(module, {name: tensor}).items())


def _bytes_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
