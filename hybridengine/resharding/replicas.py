"""replicas: whether ranks that hold the same part of a tensor hold the same bits.

A plan takes one of them; which one is its own choice. It is looked at only where a caller asks for
verify: every rank then reads all that it holds, and each tells the others a digest of each part.
"""

from __future__ import annotations

from typing import Any

import hybridengine.tensors as memory
from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.agreement import agree
from hybridengine.comm import Communicator
from hybridengine.layouts.layout import Layout


def check_replicas(comm: Communicator, layout: Layout, sources: list[Any]) -> None:
    """Throws UsageError, on every rank, naming the tensor and two ranks that hold other bits of the
    same part of it. `sources`: this rank's local tensors in the order of `layout`. Collective.

    Parts that overlap without being equal are not compared; only layouts by hand have them.
    """
    stored = sum(map(layout.num_bytes, layout.ranks))
    if layout.core.op != "copy" or stored == layout.spec.core.num_bytes:
        return  # contributions, or each byte once
    agree(
        comm,
        lambda: {"parts": _digests(layout, comm.rank, sources)},
        lambda shown: _check_equal(layout, [each["parts"] for each in shown]),
    )


def _check_equal(layout: Layout, held: list[Any]) -> None:
    first: dict[tuple[Any, ...], tuple[int, int]] = {}
    for rank, parts in enumerate(held):
        for tensor, start, size, digest in parts:
            part = (tensor, *start, *size)
            other, expected = first.setdefault(part, (rank, digest))
            if digest != expected:
                shown = ", ".join(f"{a}:{a + n}" for a, n in zip(start, size, strict=True))
                raise UsageError(
                    f"replicas of {tensor!r} [{shown}] differ: ranks {other} and {rank} hold other "
                    f"bits of it, and {layout.text} says that they are the same. Bring them "
                    "together first, e.g. broadcast from one of them."
                )


def _digests(layout: Layout, rank: int, sources: list[Any]) -> list[Any]:
    """(tensor, start, size, digest) of each part that this rank holds."""
    if rank not in layout.ranks:
        return []
    names = [name for name, _, _ in layout.locals(rank)]
    local = dict(zip(names, sources, strict=True))
    return [
        (tensor, start, size, _core.digest_strided(memory.part(local[name], size, strides, offset)))
        for tensor, name, start, size, offset, strides in layout.pieces(rank)
    ]
