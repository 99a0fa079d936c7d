"""reward: what responses are worth, by functions, with the scores of a reward model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.algorithms import overlong_penalty
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.rewards import Item, RewardProcesses, Score
from hybridengine.rlhf.roles.rollout_file import open_rollout_file
from hybridengine.rlhf.workers import RankContext, Role, dispatch


class RewardRole(Role):
    """Runs the reward functions of the config in processes of its own."""

    def __init__(self, context: RankContext, config: Config) -> None:
        super().__init__(context, config)
        self._processes = RewardProcesses(config.reward)
        self._kept = open_rollout_file(context, config) if config.trainer.save_rollouts else None

    @dispatch("by_place", returns="reference")
    def score(
        self, shard: tuple[Batch, Batch | None], keep: bool = False
    ) -> tuple[Batch, dict[str, Any]]:
        """Rows, with model_scores where there is a reward model: the rows with `task_scores`, the
        sum of functions, model and environment, and `scores`, which have the penalty for length
        too. Texts and objects end here: training needs none. `keep`: with `trainer.save_rollouts`
        these rows are written; those that measure are not."""
        began = time.perf_counter()
        batch, model_scores = shard
        items = [
            Item(
                data_source=batch["data_source"][row],
                solution=batch["response"][row],
                ground_truth=batch["ground_truth"][row],
                extra=_extra(batch, row),
                sample=int(batch["sample_id"][row]),
                where=batch["where"][row],
            )
            for row in range(len(batch))
        ]
        found = self._processes.score(items, self.context.progress)
        if model_scores is not None:
            found = self._judged(items, found, model_scores["model_scores"].tolist())
        task = torch.tensor([score.value for score in found], dtype=torch.float64)
        if "turn_rewards" in batch:
            task += batch.row_sums(batch["turn_rewards"])
        if keep and self._kept is not None:
            self._kept.add(batch, task.tolist())
        scored = replace(batch, objects={}).with_rows(
            task_scores=task, scores=task + self._length_penalty(batch)
        )
        summary = {
            "seconds": time.perf_counter() - began,
            "scores": scored["scores"].tolist(),
            "task_scores": task.tolist(),
            "parts": {
                **_columns("reward", [score.parts for score in found]),
                **_columns("environment", _numbers(batch, task.tolist())),
            },
            "errors": [score.error for score in found if score.error is not None],
        }
        return scored, summary

    @dispatch(collect="none")
    def close(self) -> None:
        self._processes.close()
        if self._kept is not None:
            self._kept.close()

    def _judged(
        self, items: Sequence[Item], found: Sequence[Score], model_scores: Sequence[float]
    ) -> list[Score]:
        """With the reward model's scores. One that is no number fails its sample, as a function's
        does. Throws UsageError with on_error=raise."""
        judged = []
        for item, score, given in zip(items, found, model_scores, strict=True):
            if math.isfinite(given):
                value = score.value + self.config.reward_model.weight * given
                judged.append(replace(score, value=value))
                continue
            error = f"{item.name()}: the reward model gave {given}, not a finite number"
            if self.config.reward.on_error == "raise":
                raise UsageError(f"{error}. Mend it, or set reward.on_error=zero.")
            judged.append(Score(0.0, error=score.error or f"{error}."))
        return judged

    def _length_penalty(self, batch: Batch) -> torch.Tensor:
        algorithm = self.config.algorithm
        if not algorithm.overlong_buffer:
            return torch.zeros(len(batch), dtype=torch.float64)
        return overlong_penalty(
            batch.row_sums(batch["mask"]),
            max_length=self.config.data.max_response_length,
            buffer=algorithm.overlong_buffer,
            factor=algorithm.overlong_factor,
        )


def _extra(batch: Batch, row: int) -> Any:
    """What a reward gets besides: that of the sample, and the turns of an episode."""
    extra = batch["extra"][row]
    if "exchanges" not in batch:
        return extra
    known = extra if isinstance(extra, dict) else {"extra": extra}
    return {**known, "turns": batch["exchanges"][row], "environment": batch["numbers"][row]}


def _numbers(batch: Batch, task_scores: Sequence[float]) -> list[Mapping[str, float]]:
    """By row, what the environment counted, and under name_solved 1 where it counted any and the
    task score is above a half."""
    if "numbers" not in batch:
        return [{}] * len(batch)
    return [
        {
            "turns": float(len(exchanges)),
            **numbers,
            **{f"{name}_solved": float(n > 0 and score > 0.5) for name, n in numbers.items()},
        }
        for numbers, exchanges, score in zip(
            batch["numbers"], batch["exchanges"], task_scores, strict=True
        )
    ]


def _columns(kind: str, rows: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    """By name of a metric its value in each row; None where a row has none."""
    names = sorted({name for row in rows for name in row})
    return {f"{kind}/{name}": [row.get(name) for row in rows] for name in names}
