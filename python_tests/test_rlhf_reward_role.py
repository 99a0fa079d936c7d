"""Functions and a reward model in one sum, and scores of the model that are no numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rlhf_local_roles
import torch
from rlhf_small_run import SMALL

from hybridengine import UsageError
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.roles.reward import RewardRole
from hybridengine.rlhf.workers import RankContext

pytestmark = pytest.mark.python


def _scored(tmp_path: Path, given: list[float], *overrides: str) -> tuple[Batch, dict[str, Any]]:
    """The texts "a", "ab", ... by the reward length, which likes two characters, and a model that
    gave these scores."""
    model = ["reward_model.path=m", "reward_model.weight=0.5", "trainer.ranks=1"]
    config = load_config([*SMALL, *model, *overrides])
    count = len(given)
    batch = Batch(
        torch.full((count,), 2),
        {"ids": torch.zeros(2 * count, dtype=torch.int64)},
        {"sample_id": torch.arange(count), "prompt_length": torch.ones(count, dtype=torch.int64)},
        {
            "response": ["abcdefg"[: row + 1] for row in range(count)],
            "data_source": ["d"] * count,
            "ground_truth": [None] * count,
            "extra": [None] * count,
            "where": [f"d.jsonl:{row + 1}" for row in range(count)],
        },
    )
    scores = Batch(batch.lengths, {}, {"model_scores": torch.tensor(given)})
    with rlhf_local_roles.one_rank(tmp_path) as context:
        role = RewardRole(context, config)
        try:
            return role.score((batch, scores))
        finally:
            role.close()


def test_the_sum(tmp_path: Path) -> None:
    rows, summary = _scored(tmp_path, [4.0, -2.0])
    assert rows["task_scores"].tolist() == [0.99 + 2.0, 1.0 - 1.0]
    assert summary["errors"] == [] and summary["parts"] == {"reward/length": [0.99, 1.0]}


def test_scores_of_the_model_that_are_no_numbers(tmp_path: Path) -> None:
    given = [float("nan"), 2.0, float("inf")]
    rows, summary = _scored(tmp_path, given)
    assert rows["task_scores"].tolist() == [0.0, 2.0, 0.0]
    assert summary["parts"] == {"reward/length": [None, 1.0, None]}  # which no mean takes for 0
    assert summary["errors"] == [
        "d.jsonl:1 (data_source 'd'): the reward model gave nan, not a finite number.",
        "d.jsonl:3 (data_source 'd'): the reward model gave inf, not a finite number.",
    ]


def test_they_end_the_run_if_asked(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"^d\.jsonl:2 .* gave -inf, not a finite number\. Mend it"
    ):
        _scored(tmp_path, [1.0, float("-inf")], "reward.on_error=raise")


def test_a_part_of_the_samples_that_is_scored_is_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process is handed twelve samples in four parts. Each may take `reward.timeout_s` a
    sample, all of them more than `cluster.timeout_s`: only silence is a failure."""
    calls: list[None] = []
    monkeypatch.setattr(RankContext, "progress", lambda _: calls.append(None))
    _scored(tmp_path, [0.0] * 12)
    assert len(calls) >= 4
