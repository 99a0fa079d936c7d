"""clipping: the norm of all gradients, from pieces that lie on different ranks.

Squares are added in float64 over fixed blocks of each piece; the sums of all ranks are added
exactly and rounded once, so every rank comes to the same norm, bit by bit.
"""

from __future__ import annotations

import array
import math
from collections.abc import Iterable
from typing import Any

from hybridengine.comm import Communicator

# Elements squared at a time. Their float64 copies stay in the cache, and in memory that the
# allocator keeps: blocks of 2 MiB took ten times as long.
_BLOCK_ELEMS = 1 << 16
# As in torch.nn.utils.clip_grad_norm_, so that a norm of zero divides nothing.
_EPSILON = 1e-6


def sums_of_squares(pieces: Iterable[Any]) -> list[float]:
    """One float64 sum per block of each flat tensor."""
    return [
        float(block.double().square().sum())
        for piece in pieces
        for block in piece.split(_BLOCK_ELEMS)
    ]


def norm_of(sums: Iterable[float]) -> float:
    return math.sqrt(math.fsum(sums))


def global_norm(comm: Communicator, pieces: Iterable[Any]) -> float:
    """The 2-norm over the pieces of all ranks, the same on each. Collective."""
    with comm.call():
        mine = array.array("d", sums_of_squares(pieces))
        replies = comm.all_gather(mine.tobytes())
    sums = array.array("d")
    for reply in replies:
        sums.frombytes(reply)
    return norm_of(sums)


def clip(pieces: Iterable[Any], norm: float, max_norm: float) -> None:
    """Scales the pieces in place so that `norm` becomes `max_norm`, where it is larger."""
    factor = max_norm / (norm + _EPSILON)
    if factor < 1:
        for piece in pieces:
            piece.mul_(factor)
