"""What every result is held against: as many processes as receiving ranks, each copying at the same
time the bytes that its rank receives, between two buffers that have been touched before."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch


class MemcpyJob:
    def __init__(self, num_bytes: int) -> None:
        self._src = torch.full((num_bytes,), 0x5B, dtype=torch.uint8)
        self._dst = torch.zeros(num_bytes, dtype=torch.uint8)

    def run(self) -> None:
        ctypes.memmove(self._dst.data_ptr(), self._src.data_ptr(), self._src.numel())

    def count_wrong(self) -> int:
        return int((self._dst != self._src).sum())


def memcpy_of(num_bytes: int) -> tuple[Callable[[], None], Callable[[], int]]:
    job = MemcpyJob(num_bytes)
    return job.run, job.count_wrong
