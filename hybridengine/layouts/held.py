"""held: what one rank holds of a model, read from a module or a dict of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import hybridengine.tensors as memory
from hybridengine._core import UsageError
from hybridengine.layouts.mapping.config import ModelConfig
from hybridengine.layouts.model_config import config_of
from hybridengine.layouts.placements import Placement, is_distributed, placement_of
from hybridengine.wording import kind_of


@dataclass(frozen=True)
class Held:
    """What one rank holds of a model.

    `tensors` are local tensors by the caller's names; tied tensors appear once,
    under the first of their names. `rows` give the shape of each: of the whole tensor where that is
    known (`whole`), of the local one otherwise. `aliases` are (second name, name).
    """

    tensors: dict[str, torch.Tensor]
    rows: list[memory.Row]
    whole: bool
    aliases: list[tuple[str, str]]
    config: ModelConfig | None
    no_config: str  # why there is none, as of Spec
    uncut: list[str]  # whole here, although others are sharded
    placements: dict[str, Placement]  # of DTensors, by the names of `tensors`
    module: bool  # and no dict
    buffers: bool  # those that are not persistent are among them


def held_by(model: Any, *, buffers: bool = False) -> Held:
    """Reads a module (its parameters and persistent buffers, with `buffers` the others too) or a
    dict of tensors.

    Throws UsageError, naming the tensor, on what is no tensor, a meta tensor, or a sparse one.
    """
    named = _named(model, buffers)
    tensors: dict[str, torch.Tensor] = {}
    rows: list[memory.Row] = []
    aliases: list[tuple[str, str]] = []
    first_of: dict[tuple[Any, ...], str] = {}
    for name, tensor in named.items():
        local, shape = _local(name, tensor)
        place = memory.place_of(tensor, local)
        if place in first_of:
            aliases.append((name, first_of[place]))
            continue
        first_of[place] = name
        tensors[name] = local
        rows.append((name, shape, memory.dtype_name(local.dtype)))
    placements = placements_of({name: named[name] for name in tensors})
    config, no_config = config_of(model)
    return Held(
        tensors,
        rows,
        bool(placements),
        aliases,
        config,
        no_config,
        _uncut(named),
        placements,
        isinstance(model, torch.nn.Module),
        buffers,
    )


def _named(model: Any, buffers: bool) -> dict[str, Any]:
    if isinstance(model, torch.nn.Module):
        named = dict(model.state_dict(keep_vars=True))
        return dict(model.named_buffers(remove_duplicate=False)) | named if buffers else named
    if buffers:
        raise UsageError(
            f"buffers=True is for modules, and model is {kind_of(model)}. Put the buffers into the "
            "dict, or leave it out."
        )
    if isinstance(model, Mapping):
        return dict(model)
    raise UsageError(
        f"model is {kind_of(model)}. Pass a torch.nn.Module or a dict of tensors, such as "
        "dict(model.named_parameters())."
    )


def placements_of(named: Mapping[str, Any]) -> dict[str, Placement]:
    """What the DTensors among them say. Throws UsageError on placements that are not read."""
    return {n: placement_of(n, each) for n, each in named.items() if is_distributed(each)}


def _uncut(named: Mapping[str, Any]) -> list[str]:
    """What every rank holds whole although there are DTensors: fully_shard leaves buffers and
    ignored parameters as they are."""
    if not any(map(is_distributed, named.values())):
        return []
    return [
        name
        for name, tensor in named.items()
        if all(placement.is_replicate() for placement in getattr(tensor, "placements", ()))
    ]


def _local(name: str, tensor: Any) -> tuple[torch.Tensor, tuple[int, ...]]:
    """The memory of `tensor` on this rank, and the shape of the whole tensor."""
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is no name. Use texts such as 'model.norm.weight'.")
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(
            f"{name!r} is {kind_of(tensor)}, not a torch tensor. Leave it out, or make it "
            "one (torch.from_numpy shares the memory of an array)."
        )
    shape = tuple(tensor.shape)
    sharded = is_distributed(tensor)
    placements = getattr(tensor, "placements") if sharded else ()  # noqa: B009
    if any(placement.is_partial() for placement in placements):
        raise UsageError(
            f"{name!r} is {placements}: ranks hold summands of it. Redistribute it to Shard or "
            "Replicate first."
        )
    local: torch.Tensor = getattr(tensor, "to_local")() if sharded else tensor  # noqa: B009
    if local.device.type == "meta":
        raise UsageError(
            f"{name!r} is on the meta device: it has no data. Materialise it (to_empty, then load) "
            "before it is moved."
        )
    if local.layout is not torch.strided:
        raise UsageError(f"{name!r} is {local.layout}, only strided tensors are moved.")
    memory.check_readable({name: local})
    # Not detached: where a caller gives a parameter other storage (.data), runs must see it.
    return local, shape


def slots_of(model: Any, *, buffers: bool) -> Iterator[tuple[Any, str, torch.Tensor]]:
    """Where a module, or a dict, keeps its tensors: (table, key, tensor). `buffers` as of
    held_by()."""
    if not isinstance(model, torch.nn.Module):
        yield from ((model, key, tensor) for key, tensor in model.items())
        return
    for each in model.modules():
        for table in (each._parameters, each._buffers):
            for key, tensor in table.items():
                if tensor is not None and (buffers or key not in each._non_persistent_buffers_set):
                    yield table, key, tensor


@dataclass(frozen=True)
class Writable:
    """Tensors that a caller gave to be written into. `uncut` and `placements` as of Held."""

    tensors: dict[str, torch.Tensor]
    uncut: list[str]
    placements: dict[str, Placement]


def writable(out: Any) -> Writable:
    """Reads a dict of tensors to write into.

    Throws UsageError on what is no dict, no tensor, or has elements that share memory.
    """
    if not isinstance(out, Mapping):
        raise UsageError(f"out is {kind_of(out)}. Pass a dict of tensors by name.")
    tensors = {name: _local(name, tensor)[0] for name, tensor in out.items()}
    for name, tensor in tensors.items():
        if memory.strided(tensor).repeats():
            how = "is expanded" if 0 in tensor.stride() else "overlaps itself"
            raise UsageError(
                f"out tensor {name!r} {how}: several of its elements share one place. Give "
                "it memory of its own (clone())."
            )
    return Writable(tensors, _uncut(out), placements_of(out))
