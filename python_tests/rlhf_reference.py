"""The formulas of docs/algorithms.md in float64, as loops over rows and tokens, and batches.

Nothing here uses torch but to hand batches over, and no formula knows of masks: a row has only its
trainable tokens.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

Row = list[float]


@dataclass
class Batch:
    """[B, T] tensors by name, and a mask. What is behind the mask is NaN."""

    mask: torch.Tensor
    tensors: dict[str, torch.Tensor]
    rows: dict[str, torch.Tensor]  # [B] by name

    def rows_of(self, name: str) -> list[Row]:
        """The trainable tokens of each row."""
        pairs = zip(self.tensors[name], self.mask, strict=True)
        return [row[kept].double().tolist() for row, kept in pairs]

    def cast(self, dtype: torch.dtype) -> "Batch":
        return replace(self, tensors={k: v.to(dtype) for k, v in self.tensors.items()})

    def take(self, rows: Any) -> "Batch":
        index = torch.as_tensor(rows, dtype=torch.long)
        tensors = {k: v[index] for k, v in self.tensors.items()}
        return Batch(self.mask[index], tensors, {k: v[index] for k, v in self.rows.items()})

    def with_inserted(self, places: list[int], width: int) -> "Batch":
        """Masked tokens inserted before each of `places` in every row, padded to `width`."""
        columns: list[int] = []
        for token in range(self.mask.shape[1]):
            columns += [-1] * places.count(token) + [token]
        columns += [-1] * (width - len(columns))
        index = torch.tensor(columns)

        def spread(values: torch.Tensor, filler: Any) -> torch.Tensor:
            return torch.where(index >= 0, values[:, index.clamp(min=0)], filler)

        tensors = {k: spread(v, torch.nan) for k, v in self.tensors.items()}
        return Batch(spread(self.mask, False), tensors, self.rows)


def random_batch(seed: int, num_rows: int = 6, num_tokens: int = 9) -> Batch:
    """Rows of 0 to num_tokens steps with gaps between them, in groups of three."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.rand(num_rows, num_tokens, generator=generator) < 0.7
    mask[0] = True
    mask[1] = False
    mask[2] = torch.arange(num_tokens) == 3
    log_probs = -normal(num_rows, num_tokens).abs() - 0.1
    tensors = {
        "log_probs": log_probs,
        "old_log_probs": log_probs + 0.3 * normal(num_rows, num_tokens),
        "ref_log_probs": log_probs + 0.8 * normal(num_rows, num_tokens),
        "advantages": normal(num_rows, num_tokens),
        "rewards": normal(num_rows, num_tokens),
        "values": normal(num_rows, num_tokens),
        "old_values": normal(num_rows, num_tokens),
        "returns": normal(num_rows, num_tokens),
    }
    tensors = {name: torch.where(mask, tensor, torch.nan) for name, tensor in tensors.items()}
    rows = {
        "groups": torch.arange(num_rows) // 3 * 7 - 4,
        "truncated": torch.rand(num_rows, generator=generator) < 0.5,
        "last_values": normal(num_rows),
        "baselines": normal(num_rows),
    }
    return Batch(mask, tensors, rows)


# Cases by name: the loss, and its options where they are not the defaults.
POLICY_LOSSES: dict[str, tuple[str, dict[str, float]]] = {
    "clip": ("clip", {}),
    "dapo": ("clip", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 1.25}),
    "gspo": ("gspo", {}),
    "cispo": ("cispo", {}),
}
_BOUNDS = {"dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4)}


def clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    return max(-advantage * ratio, -advantage * min(max(ratio, 1 - low), 1 + high))


def policy_row(name: str, new: Row, old: Row, advantages: Row) -> Row:
    """The losses of one row, with the options in POLICY_LOSSES."""
    ratios = [math.exp(a - b) for a, b in zip(new, old, strict=True)]
    if name == "gspo" and ratios:
        mean = sum(a - b for a, b in zip(new, old, strict=True)) / len(ratios)
        ratios = [math.exp(mean)] * len(ratios)
    bounds = _BOUNDS.get(name, (0.2, 0.2))
    losses = []
    for log_prob, ratio, advantage in zip(new, ratios, advantages, strict=True):
        loss = clipped(ratio, advantage, *bounds)
        if name == "dapo" and advantage < 0:
            loss = min(loss, -1.25 * advantage)
        if name == "cispo":
            loss = -min(ratio, 5.0) * advantage * log_prob
        losses.append(loss)
    return losses


def policy_slopes(name: str, new: Row, old: Row, advantages: Row) -> Row:
    """d (sum of the losses of one row) / d log_prob of each token, differentiated by hand."""
    ratios = [math.exp(a - b) for a, b in zip(new, old, strict=True)]
    if name == "gspo" and ratios:
        ratios = [math.exp(sum(math.log(r) for r in ratios) / len(ratios))] * len(ratios)
    low, high = _BOUNDS.get(name, (0.2, 0.2))
    slopes = []
    for ratio, advantage in zip(ratios, advantages, strict=True):
        free = not (
            (advantage > 0 and ratio > 1 + high)
            or (advantage < 0 and ratio < 1 - low)
            or (name == "dapo" and advantage < 0 and ratio > 1.25)
        )
        slope = -advantage * ratio if free else 0.0
        if name == "cispo":
            slope = -advantage * min(ratio, 5.0)
        slopes.append(slope)
    return slopes


def aggregated(name: str, rows: list[Row]) -> float:
    """The loss of a whole update from the losses of all its rows."""
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    if name == "token-mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if name == "seq-mean-token-sum":
        return sum(map(sum, rows)) / len(rows)
    return sum(sum(row) / len(row) for row in rows) / len(rows)


def gae_row(rewards: Row, values: Row, bootstrap: float, gamma: float, lam: float) -> Row:
    """A_t = sum over l of (gamma lam)^l delta_{t+l}, from its definition."""
    following = [*values, bootstrap][1:]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, following, values, strict=True)]
    return [
        sum((gamma * lam) ** ahead * delta for ahead, delta in enumerate(deltas[step:]))
        for step in range(len(deltas))
    ]


def whitened(rows: list[Row], eps: float = 1e-8) -> list[Row]:
    flat = [value for row in rows for value in row]
    mean = math.fsum(flat) / len(flat)
    var = math.fsum((value - mean) ** 2 for value in flat) / len(flat)
    return [[(value - mean) / math.sqrt(var + eps) for value in row] for row in rows]


def group_advantages(name: str, rows: list[Row], groups: list[int]) -> list[float]:
    """One advantage a row from the sums of its rewards; rows without tokens do not count."""
    result = []
    for row, group in zip(rows, groups, strict=True):
        scores = [sum(r) for r, g in zip(rows, groups, strict=True) if g == group and r]
        score, size = sum(row), len(scores)
        if not row or size == 1:
            result.append(0.0)
        elif name == "rloo":
            result.append(score - (sum(scores) - score) / (size - 1))
        else:
            mean = sum(scores) / size
            std = math.sqrt(sum((s - mean) ** 2 for s in scores) / (size - 1))
            scale = std + 1e-6 if name == "grpo" else 1.0
            result.append((score - mean) / scale)
    return result
