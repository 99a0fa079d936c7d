"""scored: responses with their scores, as the controller sees them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybridengine.rlhf.trainer.rows import Rows


@dataclass(frozen=True)
class Scored:
    """Responses with their scores: the rows, and by row what the controller decides by."""

    rows: Rows
    lengths: list[int]
    responses: list[int]  # tokens
    truncated: list[bool]
    groups: list[int]
    scores: list[float]
    task_scores: list[float]
    parts: dict[str, list[float | None]]  # by metric; None where a row has no such number
    errors: int

    def select(self, indices: Sequence[int]) -> Scored:
        def pick(column: list[Any]) -> list[Any]:
            return [column[index] for index in indices]

        return Scored(
            self.rows.select(indices),
            pick(self.lengths),
            pick(self.responses),
            pick(self.truncated),
            pick(self.groups),
            pick(self.scores),
            pick(self.task_scores),
            {name: pick(column) for name, column in self.parts.items()},
            self.errors,
        )

    @staticmethod
    def concat(parts: Sequence[Scored]) -> Scored:
        def join(name: str) -> list[Any]:
            return [value for part in parts for value in getattr(part, name)]

        return Scored(
            Rows.concat([part.rows for part in parts]),
            join("lengths"),
            join("responses"),
            join("truncated"),
            join("groups"),
            join("scores"),
            join("task_scores"),
            {name: _column(parts, name) for name in _names(parts)},
            sum(part.errors for part in parts),
        )

    def metrics(self) -> dict[str, float]:
        count = max(len(self.scores), 1)
        found = {name: [v for v in column if v is not None] for name, column in self.parts.items()}
        return {
            "reward/mean": sum(self.task_scores) / count,
            **_spread("reward/", self.task_scores),
            "reward/shaped": sum(self.scores) / count,
            "reward/errors": float(self.errors),
            **{name: sum(some) / len(some) for name, some in found.items() if some},
            "rollout/tokens": float(sum(self.responses)),
            "rollout/length": sum(self.responses) / count,
            **_spread("rollout/length_", self.responses),
            "rollout/truncated": sum(self.truncated) / count,
        }


def _spread(prefix: str, values: Sequence[float]) -> dict[str, float]:
    """Nothing where there are no rows."""
    if not values:
        return {}
    found = {"std": statistics.pstdev(values), "min": min(values), "max": max(values)}
    return {f"{prefix}{name}": float(value) for name, value in found.items()}


def _names(parts: Sequence[Scored]) -> list[str]:
    """Of all reward parts, in the order in which they are first met."""
    return list(dict.fromkeys(name for part in parts for name in part.parts))


def _column(parts: Sequence[Scored], name: str) -> list[float | None]:
    """A reward part by row: what a draw lacks, its rows do not have."""
    nothing = [[None] * len(part.scores) for part in parts]
    columns = [part.parts.get(name, none) for part, none in zip(parts, nothing, strict=True)]
    return [value for column in columns for value in column]
