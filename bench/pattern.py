"""Data that follow from a tensor's name, the index of an element in the whole tensor, and a round.

An element's bits are an entry of a table of mixed numbers, at (index + start of the tensor) modulo
a prime: a shift by rows or columns of any usual size shows up. The two lowest bits are 1 and the
round's parity: no element is zero, or what it was a round ago, or poison.
"""

from __future__ import annotations

import math
import zlib
from functools import lru_cache
from typing import Any

import torch

from hybridengine import tensors as memory
from hybridengine.layouts.layout import Layout

PERIOD = 1_048_573  # prime
_CHUNK_ELEMS = 1 << 22  # of whole rows that are made at a time
_POISON = 0xA4  # of every byte; its lowest bit is 0
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Pattern:
    """The values of one round."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._tables: dict[torch.dtype, torch.Tensor] = {}

    def fill(self, layout: Layout, rank: int, tensors: dict[str, torch.Tensor]) -> None:
        """Writes the pieces that `rank` holds into its local tensors; leaves padding alone."""
        shapes = {name: shape for name, shape, _ in layout.spec.tensors}
        for name, local, start, size, offset, strides in layout.pieces(rank):
            place = memory.view(as_bits(tensors[local]), size, strides, offset)
            self._write(place, name, shapes[name], start)

    def count_wrong(
        self, layout: Layout, rank: int, tensors: dict[str, torch.Tensor], poisoned: bool
    ) -> int:
        """Elements of this rank's local tensors with other bits than fill() gives them. Padding
        must be poison where `poisoned`, and zero otherwise."""
        shapes = {name: shape for name, shape, _ in layout.spec.tensors}
        pieces: dict[str, list[Any]] = {}
        for name, local, *place in layout.pieces(rank):
            pieces.setdefault(local, []).append((name, *place))
        wrong = 0
        for local, _, _ in layout.locals(rank):
            found = as_bits(tensors[local])
            expected = torch.zeros_like(found)
            if poisoned:
                poison(expected)
            for name, start, size, offset, strides in pieces.get(local, []):
                self._write(memory.view(expected, size, strides, offset), name, shapes[name], start)
            wrong += int((found != expected).sum())
        return wrong

    def _write(
        self, place: torch.Tensor, name: str, shape: tuple[int, ...], start: tuple[int, ...]
    ) -> None:
        """The box of tensor `name` that begins at `start` and has the shape of `place`."""
        if place.numel() == 0:
            return
        if place.dim() == 0:
            place.copy_(self.values(name, 0, 1, place.dtype)[0])
            return
        row_elems = math.prod(shape[1:])
        step = max(1, _CHUNK_ELEMS // row_elems)
        for first in range(0, place.shape[0], step):
            rows = min(step, place.shape[0] - first)
            begin = (start[0] + first) * row_elems
            block = self.values(name, begin, rows * row_elems, place.dtype).view(rows, *shape[1:])
            for dim in range(1, place.dim()):
                block = block.narrow(dim, start[dim], place.shape[dim])
            place[first : first + rows].copy_(block)

    def values(self, name: str, begin: int, count: int, bits: torch.dtype) -> torch.Tensor:
        """Elements begin..begin+count of the flattened tensor."""
        if bits not in self._tables:
            self._tables[bits] = _table(bits, self.number)
        return periodic(self._tables[bits], begin + zlib.crc32(name.encode()), count)


def periodic(table: torch.Tensor, begin: int, count: int) -> torch.Tensor:
    """`count` elements of `table` repeated without end, from `begin`; a view where it can be."""
    period = table.numel()
    at = begin % period
    if at + count <= period:
        return table[at : at + count]
    made = torch.empty(count, dtype=table.dtype)
    done = 0
    while done < count:
        length = min(period - at, count - done)
        made[done : done + length] = table[at : at + length]
        done, at = done + length, 0
    return made


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers of the same size, flat. Needs a contiguous tensor."""
    return tensor.reshape(-1).view(_BITS[tensor.element_size()])


def poison(tensor: torch.Tensor) -> None:
    tensor.reshape(-1).view(torch.uint8).fill_(_POISON)


def allocate(layout: Layout, rank: int, zeroed: bool) -> dict[str, torch.Tensor]:
    """Local tensors of `rank` in memory of torch's."""
    return {
        name: memory.allocate(shape, dtype, zeroed=zeroed)
        for name, shape, dtype in layout.locals(rank)
    }


@lru_cache(maxsize=8)
def mixed_numbers(number: int, count: int) -> torch.Tensor:
    """`count` numbers of 64 bits that follow from `number`: splitmix64's mixing. Not to be written
    to."""
    mixed = torch.arange(count, dtype=torch.int64) + (number + 1) * count
    mixed *= -0x61C8864680B583EB
    mixed = (mixed ^ ((mixed >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    mixed = (mixed ^ ((mixed >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return mixed ^ ((mixed >> 31) & 0x1FFFFFFFF)


def _table(bits: torch.dtype, number: int) -> torch.Tensor:
    mixed = mixed_numbers(number, PERIOD)
    return ((mixed << 2) | (number % 2 << 1) | 1).to(bits)
