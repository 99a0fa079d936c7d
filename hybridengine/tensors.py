"""tensors: torch tensors as memory: made, viewed at an address, compared, found to share it.

What a model holds of a whole says layouts.held.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from hybridengine._core import UsageError, describe_memory
from hybridengine.overlap import Strided

Row = tuple[str, tuple[int, ...], str]  # name, shape, dtype


def place_of(tensor: torch.Tensor, local: torch.Tensor) -> tuple[Any, ...]:
    """What two names of the same tensor have in common. Where there are no bytes only the object
    can tell."""
    if local.numel() == 0:
        return (id(tensor),)
    return (local.data_ptr(), tuple(local.shape), local.stride(), local.dtype)


def same_place(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether they are the same elements of the same memory; any two without elements are."""
    return left.numel() == right.numel() == 0 or place_of(left, left) == place_of(right, right)


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


# Where a tensor lies in a segment: its type, shape, strides, and where it begins, in elements.
Placed = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]


def placed(rows: list[Row], offsets: list[int]) -> list[Placed]:
    """Tensors of those shapes and dtypes at `offsets` (bytes, multiples of every element size)."""
    kinds = [getattr(torch, dtype) for _, _, dtype in rows]
    return [
        (kind, shape, _row_major(shape), start // kind.itemsize)
        for kind, (_, shape, _), start in zip(kinds, rows, offsets, strict=False)
    ]


def in_segment(segment: Any, places: list[Placed]) -> list[torch.Tensor]:
    """Tensors at those places of a segment, which they keep."""
    whole = {kind: torch.frombuffer(segment, dtype=kind) for kind in {each[0] for each in places}}
    return [whole[kind].as_strided(shape, strides, start) for kind, shape, strides, start in places]


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
        try:
            describe_memory(tensor)
        except UsageError as error:
            raise UsageError(f"{name!r}: {error}") from error


def num_different(tensor: torch.Tensor, expected: torch.Tensor) -> int:
    """How many elements have other bits than those of a tensor of the same shape and type."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    left, right = (each.reshape(-1).view(bits) for each in (tensor, expected))
    return int((left != right).sum())


def check_apart(
    out: dict[str, torch.Tensor],
    sources: dict[str, torch.Tensor],
    aliases: Iterable[tuple[str, str]],
) -> None:
    """Throws UsageError where a destination shares memory with a source or another destination, but
    for `aliases` (second name, name), which must."""
    tied = {alias for alias, name in aliases if alias in out and name in out}
    for alias, name in aliases:
        if alias in tied and strided(out[alias]) != strided(out[name]):
            raise UsageError(
                f"out tensor {alias!r} has memory of its own, but it is tied to {name!r} in the "
                "model. Tie it in out as well, or leave it out."
            )
    ranges = [(strided(t), name, "out") for name, t in out.items() if name not in tied]
    ranges += [(strided(t), name, "model") for name, t in sources.items()]
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


def strided(tensor: torch.Tensor) -> Strided:
    """Which bytes it has, as numbers."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return Strided(tensor.data_ptr(), shape, strides, tensor.element_size())
