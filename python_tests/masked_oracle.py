"""What a masked all-reduce must give, in plain torch: one statement per rule."""

from __future__ import annotations

import torch


def entries_of(scores, values: torch.Tensor, threshold: float) -> torch.Tensor:
    """Which elements of `values` take part, from scores of any granularity."""
    keep = torch.as_tensor(scores) >= threshold
    keep = keep.reshape(tuple(keep.shape) + (1,) * (values.dim() - keep.dim()))
    return keep.expand(values.shape)


def expected(values: list[torch.Tensor], keep: list[torch.Tensor], op: str, fill: float = 0.0):
    """Values and counts per element: summed in the order of ranks in float32 (float64 and integers
    in themselves), rounded once."""
    dtype = values[0].dtype
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    total = torch.zeros(values[0].shape, dtype=wide)
    if wide.is_floating_point:
        total = -total
    counts = torch.zeros(values[0].shape, dtype=torch.int32)
    for each, kept in zip(values, keep, strict=True):
        total = torch.where(kept, total + each.to(wide), total)
        counts += kept
    if op != "sum":
        divisor = counts if op == "mean" else torch.full_like(counts, len(values))
        total = total / divisor.to(wide)
    filled = torch.full_like(total, fill)
    return torch.where(counts > 0, total, filled).to(dtype), counts


def in_float64(values: list[torch.Tensor], keep: list[torch.Tensor], op: str, fill: float = 0.0):
    """The same without any rounding on the way."""
    stacked = torch.stack([each.double() for each in values])
    kept = torch.stack(keep)
    counts = kept.sum(0)
    total = torch.where(kept, stacked, 0.0).sum(0)
    if op != "sum":
        total = total / (counts if op == "mean" else len(values))
    return torch.where(counts > 0, total, fill)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """NaN equals NaN; 0 does not equal -0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    differ = a.contiguous().view(bits) != b.contiguous().view(bits)
    if a.dtype.is_floating_point:
        differ &= ~(a.isnan() & b.isnan())
    return not bool(differ.any())
