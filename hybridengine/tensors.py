"""Tensors: the only file of the core package that touches torch tensors.

It reads what a module or a dict holds on this rank, makes destination memory, and knows when two
tensors share storage. Names and shapes leave it as plain values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hybridengine._core import UsageError, describe_memory
from hybridengine.layouts.model_config import config_of
from hybridengine.layouts.placements import Placement, is_distributed, placement_of
from hybridengine.layouts.spec import ModelConfig
from hybridengine.overlap import Strided
from hybridengine.wording import kind_of

Row = tuple[str, tuple[int, ...], str]  # name, shape, dtype


@dataclass(frozen=True)
class Held:
    """What one rank holds of a model.

    `tensors` are local tensors by the caller's names; tied tensors appear once,
    under the first of their names. `rows` give the shape of each: of the whole tensor where that is
    known (`whole`), of the local one otherwise. `aliases` are (second name, name).
    """

    tensors: dict[str, torch.Tensor]
    rows: list[Row]
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
    if isinstance(model, torch.nn.Module):
        named = dict(model.state_dict(keep_vars=True))
        if buffers:
            named = dict(model.named_buffers(remove_duplicate=False)) | named
    elif buffers:
        raise UsageError(
            f"buffers=True is for modules, and model is {kind_of(model)}. Put the buffers into the "
            "dict, or leave it out."
        )
    elif isinstance(model, Mapping):
        named = dict(model)
    else:
        raise UsageError(
            f"model is {kind_of(model)}. Pass a torch.nn.Module or a dict of tensors, such as "
            "dict(model.named_parameters())."
        )
    tensors: dict[str, torch.Tensor] = {}
    rows: list[Row] = []
    aliases: list[tuple[str, str]] = []
    first_of: dict[tuple[Any, ...], str] = {}
    for name, tensor in named.items():
        local, shape = _local(name, tensor)
        place = _place(tensor, local)
        if place in first_of:
            aliases.append((name, first_of[place]))
            continue
        first_of[place] = name
        tensors[name] = local
        rows.append((name, shape, dtype_name(local.dtype)))
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
    _check_readable(name, local)
    # Not detached: where a caller gives a parameter other storage (.data), runs must see it.
    return local, shape


def _check_readable(name: str, local: torch.Tensor) -> None:
    """Throws UsageError, naming the tensor, where the core cannot use its memory."""
    try:
        describe_memory(local)
    except UsageError as error:
        raise UsageError(f"{name!r}: {error}") from error


def _place(tensor: torch.Tensor, local: torch.Tensor) -> tuple[Any, ...]:
    """What two names of the same tensor have in common. Where there are no bytes only the object
    can tell."""
    if local.numel() == 0:
        return (id(tensor),)
    return (local.data_ptr(), tuple(local.shape), local.stride(), local.dtype)


def same_place(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether they are the same elements of the same memory; any two without elements are."""
    return left.numel() == right.numel() == 0 or _place(left, left) == _place(right, right)


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


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def parse_dtype(dtype: Any) -> str | None:
    """The name of a floating torch dtype, or of its name; None stays None."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(
            f"dtype={dtype} is no floating torch dtype. Use torch.bfloat16, for example."
        )
    return dtype_name(found)


def allocate(shape: tuple[int, ...], dtype: str, *, zeroed: bool = False) -> torch.Tensor:
    """Fresh contiguous host memory."""
    make = torch.zeros if zeroed else torch.empty
    return make(shape, dtype=getattr(torch, dtype))


def zeros_when_touched(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Zeros in fresh memory that the system clears page by page, when a page is first used."""
    kind = getattr(torch, dtype)
    size = math.prod(shape) * kind.itemsize
    if size == 0:
        return allocate(shape, dtype)
    return torch.from_numpy(np.zeros(size, np.uint8)).view(kind).view(shape)


def in_segment(segment: Any, rows: list[Row], offsets: list[int]) -> list[torch.Tensor]:
    """Tensors of those shapes and dtypes at `offsets` (bytes, multiples of every element size, the
    last one the end) of a segment, which they keep."""
    if offsets[-1] == 0:
        return [allocate(shape, dtype) for _, shape, dtype in rows]
    base = torch.frombuffer(segment, dtype=torch.uint8)[: offsets[-1]]
    whole = {dtype: base.view(getattr(torch, dtype)) for dtype in {row[2] for row in rows}}
    return [
        whole[dtype].as_strided(shape, _row_major(shape), start // whole[dtype].element_size())
        for (_, shape, dtype), start in zip(rows, offsets, strict=False)
    ]


@functools.lru_cache(maxsize=1024)
def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(max(size, 1) for size in shape[dim + 1 :]) for dim in range(len(shape)))


def view(
    tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> torch.Tensor:
    """A view of contiguous `tensor`, at `offset` elements from its start."""
    return tensor.detach().as_strided(shape, strides, tensor.storage_offset() + offset)


def part(
    tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> torch.Tensor:
    """As view(), of a tensor that need not be contiguous; a copy where it is not."""
    return view(tensor.detach().contiguous(), shape, strides, offset)


def check_readable(tensors: Mapping[str, torch.Tensor]) -> None:
    """Throws UsageError, naming the tensor, on the first whose memory the core cannot use."""
    for name, tensor in tensors.items():
        _check_readable(name, tensor)


def num_different(tensor: torch.Tensor, expected: torch.Tensor) -> int:
    """How many elements have other bits than those of a tensor of the same shape and type."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    left, right = (each.reshape(-1).view(bits) for each in (tensor, expected))
    return int((left != right).sum())


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
        if _strided(tensor).repeats():
            how = "is expanded" if 0 in tensor.stride() else "overlaps itself"
            raise UsageError(
                f"out tensor {name!r} {how}: several of its elements share one place. Give "
                "it memory of its own (clone())."
            )
    return Writable(tensors, _uncut(out), placements_of(out))


def check_apart(
    out: dict[str, torch.Tensor],
    sources: dict[str, torch.Tensor],
    aliases: Iterable[tuple[str, str]],
) -> None:
    """Throws UsageError where a destination shares memory with a source or another destination, but
    for `aliases` (second name, name), which must."""
    tied = {alias for alias, name in aliases if alias in out and name in out}
    for alias, name in aliases:
        if alias in tied and _strided(out[alias]) != _strided(out[name]):
            raise UsageError(
                f"out tensor {alias!r} has memory of its own, but it is tied to {name!r} in the "
                "model. Tie it in out as well, or leave it out."
            )
    ranges = [(_strided(t), name, "out") for name, t in out.items() if name not in tied]
    ranges += [(_strided(t), name, "model") for name, t in sources.items()]
    ranges = sorted(
        (each for each in ranges if 0 not in each[0].shape), key=lambda each: each[0].address
    )
    near: list[tuple[Strided, str, str]] = []  # that reach beyond the start of the next one
    for place, name, where in ranges:
        near = [each for each in near if each[0].end > place.address]
        for other, owner, side in near:
            if "out" in (where, side) and place.shares(other):
                raise UsageError(
                    f"{where} tensor {name!r} and {side} tensor {owner!r} share memory. Give the "
                    "destination memory of its own, or use alias=True for views of the source."
                )
        near.append((place, name, where))


def _strided(tensor: torch.Tensor) -> Strided:
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return Strided(tensor.data_ptr(), shape, strides, tensor.element_size())
