"""Data of reductions whose results are exact in every type and order of summands.

Rank r has at index i the whole number b + 2 ((r + i) mod n): b follows from the index and the round
and has the round's parity, n is the world size. Of all ranks together the largest is b + 2 (n - 1),
the smallest b, the mean b + n - 1 and the sum n times that. No rank has what another has, no sum
leaves what the type represents exactly, and every result differs from that of the round before.
"""

from __future__ import annotations

import torch

from hybridengine._bench.pattern import PERIOD, as_bits, mixed_numbers, periodic
from hybridengine._core import UsageError

# Whole numbers up to here are exact, and so are their sums on the way.
_EXACT = {
    "int8": 127,
    "uint8": 127,
    "int32": 1 << 20,
    "int64": 1 << 20,
    "float16": 2048,
    "bfloat16": 256,
    "float32": 1 << 20,
    "float64": 1 << 20,
}
TYPES = tuple(_EXACT)

_MOST_BASES = 64
_CHUNK_ELEMS = 1 << 22


class Exact:
    """The tables of one round. They repeat after PERIOD elements."""

    def __init__(self, dtype: str, world: int, number: int) -> None:
        """Throws UsageError where so many ranks have no exact sums in `dtype`."""
        bases = min((_EXACT[dtype] // world - (world - 1) + 1) // 2 * 2, _MOST_BASES)
        if bases < 2:
            raise UsageError(
                f"sums of {world} ranks are not exact in {dtype}. Use fewer ranks or a wider type."
            )
        self.world, self._dtype = world, getattr(torch, dtype)
        self._base = (mixed_numbers(number, PERIOD) >> 20) % (bases // 2) * 2 + number % 2

    def source(self, rank: int) -> torch.Tensor:
        """What `rank` contributes."""
        steps = (torch.arange(PERIOD) + rank) % self.world
        return (self._base + 2 * steps).to(self._dtype)

    def result(self, op: str) -> torch.Tensor:
        """What comes of all ranks; `op` has nccl-tests' name."""
        most = self.world - 1
        result = {
            "sum": self.world * (self._base + most),
            "avg": self._base + most,
            "max": self._base + 2 * most,
            "min": self._base,
        }[op]
        return result.to(self._dtype)


def write(tensor: torch.Tensor, table: torch.Tensor, begin: int) -> None:
    """Fills a contiguous tensor with `table` from `begin` on."""
    flat = tensor.view(-1)
    for at in range(0, flat.numel(), _CHUNK_ELEMS):
        part = flat[at : at + _CHUNK_ELEMS]
        part.copy_(periodic(table, begin + at, part.numel()))


def count_different(tensor: torch.Tensor, table: torch.Tensor, begin: int) -> int:
    """Elements of a contiguous tensor with other bits than `table` has from `begin` on."""
    flat, bits = as_bits(tensor), as_bits(table)
    wrong = 0
    for at in range(0, flat.numel(), _CHUNK_ELEMS):
        part = flat[at : at + _CHUNK_ELEMS]
        wrong += int((part != periodic(bits, begin + at, part.numel())).sum())
    return wrong
