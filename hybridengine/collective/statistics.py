"""statistics: what is known of values that lie on several ranks, from those that can be trusted.

Every function gives the same bits on every rank.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hybridengine._core import UsageError
from hybridengine.agreement import agree
from hybridengine.comm import Communicator, communicator_of
from hybridengine.options import whole
from hybridengine.wording import kind_of


@dataclass(frozen=True)
class MeanVar:
    """Of `count` values over all ranks; mean and variance are 0 where there are none."""

    count: int
    mean: float
    variance: float


def masked_mean_var(values: Any, keep: Any, comm: Communicator | None = None) -> MeanVar:
    """Mean and variance (over the count, not one less) of the values that `keep` marks, over all
    ranks: of the rewards that are trusted, for example.

    Collective over `comm` (default: the default torch.distributed group). `values`: a tensor of any
    shape; its size may differ over ranks and be 0. `keep`: a bool tensor of its shape, or None for
    all. What is not kept is not looked at.

    In float64 and in two passes, the variance from differences to the mean: a large common offset
    costs no digits, and equal values have a variance of exactly 0. Throws UsageError on every rank
    where shapes differ.
    """
    comm = communicator_of(comm)
    with comm.between_calls():
        kept: list[Any] = []  # values, in float64

        def first_pass() -> dict[str, Any]:
            error = _fault(values, keep)
            if not error:
                kept.append(_kept(values, keep))
            return asdict(_part_of(kept[0]) if kept else _Part(error))

        parts = agree(comm, first_pass, _parts)
        count = sum(each.count for each in parts)
        if count == 0:
            return MeanVar(0, 0.0, 0.0)
        mean = _mean([each for each in parts if each.count > 0], count)
        with comm.call():
            rest = comm.all_gather(json.dumps(_second_pass(kept[0], mean)).encode())
        return MeanVar(count, mean, _squares([json.loads(each) for each in rest], count) / count)


def block_scores(gradients: Any, rows: int) -> Any:
    """Scores for `masked_all_reduce(..., granularity="row")` that keep or drop `rows` rows at a
    time: each row gets the mean absolute value of its block. The last block may be smaller.

    `gradients`: a tensor or a list of them. The scores are float32.
    """
    if isinstance(gradients, list | tuple):
        return [block_scores(each, rows) for each in gradients]
    if not hasattr(gradients, "detach"):
        raise UsageError(
            f"gradients are {kind_of(gradients)}. Give a torch tensor or a list of them."
        )
    if whole("rows", rows) < 1:
        raise UsageError(f"a block has {rows} rows. Give at least 1.")
    flat = gradients.detach().reshape(gradients.shape or (1,)).unsqueeze(-1).flatten(1)
    single = flat[:0].float().dtype
    sums = flat.norm(p=1, dim=1, dtype=single)
    num_rows = sums.shape[0]
    num_blocks = -(-num_rows // rows)
    blocks = sums.new_zeros(num_blocks * rows)
    blocks[:num_rows] = sums
    sizes = sums.new_full((num_blocks,), float(rows * flat.shape[1]))
    if num_blocks:
        sizes[-1] = float((num_rows - (num_blocks - 1) * rows) * flat.shape[1])
    means = blocks.reshape(num_blocks, rows).sum(1) / sizes.clamp(min=1)
    scores = means.repeat_interleave(rows)[:num_rows]
    return scores.reshape(gradients.shape[:1])


@dataclass(frozen=True)
class _Part:
    """What one rank says in the first pass."""

    error: str = ""
    count: int = 0
    sum: float = 0.0
    smallest: float = 0.0
    largest: float = 0.0


def _parts(shown: list[Mapping[str, Any]]) -> list[_Part]:
    parts = [_Part(**each) for each in shown]
    for each in parts:
        if each.error:
            raise UsageError(each.error)
    return parts


def _fault(values: Any, keep: Any) -> str:
    for name, each in (("values", values), ("keep", keep)):
        if not hasattr(each, "shape") and not (name == "keep" and each is None):
            return f"{name} is {kind_of(each)}. Give a torch tensor."
    if keep is not None and tuple(keep.shape) != tuple(values.shape):
        return f"keep is {list(keep.shape)}, values are {list(values.shape)}. Give one shape."
    return ""


def _kept(values: Any, keep: Any) -> Any:
    """The values that count on this rank, in float64."""
    return (values if keep is None else values[keep.bool()]).detach().double().reshape(-1)


def _part_of(kept: Any) -> _Part:
    if kept.numel() == 0:
        return _Part()
    return _Part("", kept.numel(), float(kept.sum()), float(kept.min()), float(kept.max()))


def _second_pass(kept: Any, mean: float) -> tuple[float, float]:
    """Sums of differences to the mean, and of their squares."""
    differences = kept - mean
    return float(differences.sum()), float((differences * differences).sum())


def _mean(parts: list[_Part], count: int) -> float:
    """Within the range of the values, so that equal ones differ from it by exactly 0."""
    mean = sum(each.sum for each in parts) / count
    return max(min(mean, max(each.largest for each in parts)), min(each.smallest for each in parts))


def _squares(parts: list[tuple[float, float]], count: int) -> float:
    """The sum of squared differences, corrected for the rounding of the mean."""
    rest = sum(each[0] for each in parts)
    return max(0.0, sum(each[1] for each in parts) - rest * rest / count)
