"""masks: which tokens count, and arithmetic that never reads the others.

Everywhere in this package `mask` is bool [B, T], one row a sequence, true at *trainable* tokens:
those that the policy sampled. Prompt, padding and what a tool returned are false. A value behind
the mask may be anything, NaN included: it is replaced by `torch.where` before the first operation,
and so its gradient is exactly 0. It is never multiplied by the mask, since 0 * NaN is NaN.
"""

from __future__ import annotations

import math

import torch

from hybridengine._core import UsageError


def check_shapes(mask: torch.Tensor, **tensors: torch.Tensor) -> None:
    """Throws UsageError unless `mask` is bool [B, T] and every tensor has its shape."""
    if mask.dtype != torch.bool or mask.dim() != 2:
        raise UsageError(
            f"mask must be bool of shape [sequences, tokens]: it is {mask.dtype} of shape "
            f"{list(mask.shape)}. Pass mask.bool(), one row a sequence."
        )
    for name, tensor in tensors.items():
        if tensor.shape != mask.shape:
            raise UsageError(
                f"{name} and mask differ in shape: {name} is {list(tensor.shape)}, mask is "
                f"{list(mask.shape)}. Pass one value a token."
            )


def check_rows(mask: torch.Tensor, **tensors: torch.Tensor) -> None:
    """Throws UsageError unless every tensor is [B], one value a row of `mask`."""
    check_shapes(mask)
    for name, tensor in tensors.items():
        if tensor.shape != mask.shape[:1]:
            raise UsageError(
                f"{name} is {list(tensor.shape)}, but mask has {mask.shape[0]} rows. "
                "Pass one value a sequence."
            )


def check_scores(scores: torch.Tensor, counted: torch.Tensor) -> None:
    """Throws UsageError, with the row, on a score [B] that is NaN or infinite where `counted`."""
    faulty = torch.nonzero(counted & ~scores.isfinite())
    if len(faulty):
        row = int(faulty[0])
        raise UsageError(
            f"the score of row {row} is {float(scores[row])}: a score must be finite. "
            "Mend the reward function, or filter such responses out."
        )


def check_number(
    name: str,
    number: float,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: bool = False,
) -> None:
    """Throws UsageError unless low <= number <= high (low < number with `above`); NaN never is."""
    if not (low <= number <= high) or not math.isfinite(number) or (above and number == low):
        wanted = f"{'above' if above else 'at least'} {low:g}"
        if high != math.inf:
            wanted += f" and at most {high:g}"
        raise UsageError(f"{name}={number} is out of range: it must be {wanted}. Change {name}.")


def widen(values: torch.Tensor) -> torch.Tensor:
    """float32 for types of 16 bits and fewer, else unchanged."""
    return values.float() if values.dtype.itemsize < 4 else values


def select(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`values`, widened, with 0 in value and gradient wherever `mask` is false."""
    return torch.where(mask, widen(values), 0)


def last_trainable(mask: torch.Tensor) -> torch.Tensor:
    """bool [B, T]: true at the last trainable token of each row; an empty row has none."""
    return mask & (mask.flip(1).cumsum(1).flip(1) == 1)


def row_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[B]: mean over the trainable tokens of each row, 0 where there are none."""
    return select(values, mask).sum(1) / mask.sum(1).clamp(min=1)
