"""loading: the weights of a checkpoint, or of a seed, into what each rank keeps of a model.

A model is made without memory, cut, and only then gets memory for this rank's *parts*, which are
read from the files' pages that hold them. No rank ever holds a whole model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hybridengine._core import UsageError
from hybridengine.checkpoint import Checkpoint, checkpoint_files
from hybridengine.layouts.held import placements_of
from hybridengine.layouts.placements import own_boxes
from hybridengine.rlhf.config.schema import Model
from hybridengine.rlhf.model_files import model_directory
from hybridengine.rlhf.training.drawing import Weight, drawn_weights
from hybridengine.rlhf.training.lora import plain_name
from hybridengine.rlhf.training.models import (
    Kind,
    auto_class,
    does_not_load,
    empty_model,
    quiet_transformers,
    source_of,
)
from hybridengine.rlhf.training.optimizer import local

_FLOATS = ("float64", "float32", "float16", "bfloat16")  # others are codes, not weights
_HEAD = "score."


def build_model(
    model: Model,
    kind: Kind,
    dtype: torch.dtype,
    seed: int,
    path: str | os.PathLike[str] | None = None,
    *,
    cut: Callable[[nn.Module], object] = lambda module: module,
    device: torch.device | str = "cpu",
    progress: Callable[[], None] = lambda: None,
) -> nn.Module:
    """The model as empty_model makes it, with its weights in `dtype` on `device`.

    `cut` is called with it before it has memory, and may leave this rank parts of its weights
    (shard) or add some (add_adapters). A head that the checkpoint lacks is zero. Without a
    directory, weights are drawn by `seed`, the same on every rank. `progress` is called after every
    weight. Throws UsageError as empty_model does, and on a checkpoint that lacks weights.
    """
    module = empty_model(model, kind, path, dtype)
    cut(module)
    _give_memory(module, device)
    parts = _parts_of(module)
    source = source_of(model, path)
    if source is None:
        found = _taken(drawn_weights(model.config, kind, seed, dtype), parts)
    else:
        found = _read(module, model_directory(source), kind, parts)
    missing = set(parts)
    for name in found:
        missing.discard(name)
        progress()
    for name in missing:  # a head: rather than noise until it is trained
        parts[name].tensor.zero_()
    return module


@dataclass(frozen=True)
class _Part:
    """What this rank keeps of a weight: the box of the whole that begins at `start`."""

    tensor: torch.Tensor
    start: tuple[int, ...]
    shape: tuple[int, ...]  # of the whole

    def take(self, whole: torch.Tensor) -> None:
        ends = zip(self.start, self.tensor.shape, strict=True)
        self.tensor.copy_(whole[tuple(slice(first, first + count) for first, count in ends)])


def _parts_of(module: nn.Module) -> dict[str, _Part]:
    """By their names in a checkpoint; adapters are in none."""
    parts = {}
    named = {name: each for name, each in module.named_parameters() if ".lora_" not in name}
    boxes = own_boxes(placements_of(named))
    for name, weight in named.items():
        start = boxes[name][0] if name in boxes else (0,) * weight.dim()
        parts[plain_name(name)] = _Part(local(weight), tuple(start), tuple(weight.shape))
    return parts


def _give_memory(module: nn.Module, device: torch.device | str) -> None:
    """To every weight without; tied weights stay one."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for each in module.modules():
        for name, weight in each._parameters.items():
            places.setdefault(id(weight), []).append((each, name))
    module._apply(  # type: ignore[no-untyped-call]
        lambda each: torch.empty_like(each, device=device) if each.is_meta else each
    )
    for (owner, first), *others in places.values():
        for each, name in others:
            each._parameters[name] = owner._parameters[first]


def _read(module: Any, directory: Path, kind: Kind, parts: Mapping[str, _Part]) -> Iterator[str]:
    """The names of the weights, as each is read."""
    stored = _stored_names(module.base_model_prefix, directory, parts)
    optional = {name for name in parts if kind != "policy" and name.startswith(_HEAD)}
    if stored is None or parts.keys() - stored.keys() - optional:
        yield from _taken(_whole_weights(directory, kind), parts)
        return
    checkpoint = Checkpoint(directory)
    for name, file_name in stored.items():
        part = parts[name]
        part.tensor.copy_(checkpoint.slice(file_name, part.start, part.tensor.shape))
        yield name


def _stored_names(
    prefix: str, directory: Path, parts: Mapping[str, _Part]
) -> dict[str, str] | None:
    """What the files call the parts, of those that they have as the module has them. A checkpoint
    of the bare backbone leaves out its prefix. None where it has no safetensors."""
    try:
        checkpoint_files(directory)
    except UsageError:
        return None
    rows = Checkpoint(directory).rows
    found = {}
    for name, part in parts.items():
        for candidate in (name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}"):
            shape, dtype = rows.get(candidate, ((), ""))
            if dtype in _FLOATS and shape == part.shape:
                found[name] = candidate
                break
    return found


def _taken(weights: Iterator[Weight], parts: Mapping[str, _Part]) -> Iterator[str]:
    """The names of the weights of which a part is kept, as each is taken."""
    for name, whole in weights:
        if name in parts:
            parts[name].take(whole)
            yield name


def _whole_weights(directory: Path, kind: Kind) -> Iterator[Weight]:
    """By transformers, all of them on this rank: what is pickled, or is kept under other names or
    apart (experts), is known to it alone."""
    options = {} if kind == "policy" else {"num_labels": 1}
    try:
        with quiet_transformers():
            whole, facts = auto_class(kind).from_pretrained(
                directory,
                dtype="auto",
                local_files_only=True,
                output_loading_info=True,
                **options,
            )
    except Exception as error:  # whatever a damaged file makes a parser raise
        raise does_not_load(directory, kind, error) from None
    missing = set(facts["missing_keys"])
    lacking = {name for name in missing if kind == "policy" or not name.startswith(_HEAD)}
    if lacking:
        raise UsageError(
            f"{str(directory)!r} lacks weights of a {kind} model, e.g. {min(lacking)!r}. Give a "
            "complete checkpoint."
        )
    yield from ((name, each) for name, each in whole.state_dict().items() if name not in missing)
