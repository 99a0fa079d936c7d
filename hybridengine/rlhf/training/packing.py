"""packing: rows without padding, and how attention takes them apart.

Packed, the rows of a batch are one row [1, N] with positions that start anew. Everything but
attention treats tokens alone; attention takes queries, keys and values apart into buckets of rows
of like length for as long as it computes. So no row sees another by construction, no mask of N^2 is
made, and the work follows the sum of the squared lengths, not the longest row. Knows no model;
attention.py calls it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hybridengine.rlhf.balance import like_lengths
from hybridengine.rlhf.batch import Batch

# What a bucket costs besides its pairs of tokens: as much as a row of 64 tokens. With less, short
# rows come in many small calls; with more, long ones are padded.
_CALL_PAIRS = 64 * 64


@dataclass(frozen=True)
class Bucket:
    """Some rows, each padded to `width`: what attention computes at a time."""

    tokens: torch.Tensor | None  # int64 [n]: where theirs are in the batch; None: all, in order
    places: torch.Tensor  # int64 [n]: where each lies in a flattened [num_rows, width]
    num_rows: int
    width: int

    @staticmethod
    def of(rows: Batch, tokens: torch.Tensor | None, device: torch.device) -> Bucket:
        width = int(rows.lengths.max())
        tokens = None if tokens is None else tokens.to(device)
        return Bucket(tokens, rows.places(width).to(device), len(rows), width)

    def unpack(self, flat: torch.Tensor) -> torch.Tensor:
        """[N, ...] of the whole batch as [num_rows, width, ...], zeros on the right."""
        mine = flat if self.tokens is None else flat[self.tokens]
        out = flat.new_zeros((self.num_rows * self.width, *flat.shape[1:]))
        out = out.index_copy(0, self.places, mine)
        return out.view(self.num_rows, self.width, *flat.shape[1:])

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """What `unpack` made a rectangle of: [n, ...]."""
        return padded.flatten(0, 1)[self.places]


@dataclass(frozen=True)
class PackedRows:
    """The rows of a packed batch as buckets, which together have every row once."""

    buckets: list[Bucket]
    order: torch.Tensor | None  # int64 [N]: of each token among those of all buckets in turn

    @staticmethod
    def of(batch: Batch, device: torch.device) -> PackedRows:
        cut = like_lengths(batch.lengths.tolist(), _CALL_PAIRS)
        if len(cut) == 1:
            return PackedRows([Bucket.of(batch, None, device)], None)
        plain = Batch(batch.lengths, {"at": torch.arange(int(batch.lengths.sum()))})
        rows = [plain.select(bucket) for bucket in cut]
        order = torch.cat([each["at"] for each in rows]).argsort()
        return PackedRows([Bucket.of(each, each["at"], device) for each in rows], order.to(device))

    @property
    def pairs(self) -> int:
        """Pairs of tokens that attention computes, for a head of a layer."""
        return sum(bucket.num_rows * bucket.width**2 for bucket in self.buckets)

    def together(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """What `pack` of every bucket gave, in the order of the batch: [N, ...]."""
        return parts[0] if self.order is None else torch.cat(parts)[self.order]
