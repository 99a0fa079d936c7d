"""A batch that the group filter cannot fill is said, or ends the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rlhf_small_run import SMALL

from hybridengine import UsageError
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.roles.tokenizer import open_tokenizer
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.prompts import Prompts
from hybridengine.rlhf.trainer.rows import Rows
from hybridengine.rlhf.trainer.scored import Scored

pytestmark = pytest.mark.python

_DAPO = ["algorithm.group_filter=dapo", "algorithm.max_filter_rounds=3", "warmup.steps=0"]


class _Steps:
    """In each draw of ten groups the first so many teach something."""

    def __init__(self, *informative: int) -> None:
        self._informative = list(informative)

    def respond(self, prompts: Batch, clock: Clock, keep: bool) -> Scored:
        groups = prompts["group"].tolist()
        rows: Any = [SimpleNamespace()] * len(groups)
        numbers = [1] * len(groups)
        scores = [0.0] * len(groups)
        return Scored(
            Rows(rows), numbers, numbers, [False] * len(groups), groups, scores, scores, {}, 0
        )

    def informative(self, scored: Scored) -> Scored:
        chosen = sorted(set(scored.groups))[: self._informative.pop(0)]
        return scored.select([row for row, group in enumerate(scored.groups) if group in chosen])


def _source(*overrides: str) -> Prompts:
    config = load_config([*SMALL, *_DAPO, "trainer.ranks=1", *overrides])
    return Prompts(config, open_tokenizer(config))


def _drawn(source: Prompts, *informative: int) -> tuple[Scored, dict[str, float]]:
    steps: Any = _Steps(*informative)
    return source.rollouts(steps, Clock())


def test_a_full_batch_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    source = _source()
    scored, metrics = _drawn(source, 4, 7)
    assert metrics["rollout/rounds"] == 2 and metrics["rollout/missing_groups"] == 0
    assert metrics["rollout/kept_groups"] == len(set(scored.groups)) == 10
    assert capsys.readouterr().err == ""


def test_short_batches_are_said_ever_more_rarely(capsys: pytest.CaptureFixture[str]) -> None:
    source = _source()
    scored, metrics = _drawn(source, 2, 0, 1)
    assert len(set(scored.groups)) == 3 and metrics["rollout/missing_groups"] == 7
    assert capsys.readouterr().err == (
        "hybridengine: only 3 of 10 groups teach something after 3 draws "
        "(algorithm.max_filter_rounds): in the others all scores are equal; the step trains on "
        "these 3\n"
    )
    scored, metrics = _drawn(source, 0, 0, 0)
    assert len(scored.rows) == 0 and metrics["rollout/missing_groups"] == 10
    assert "the step trains on nothing; 2 such steps so far" in capsys.readouterr().err
    for _ in range(6):
        _drawn(source, 0, 1, 0)
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition("; ")[2] for line in lines] == [
        "4 such steps so far",
        "8 such steps so far",
    ]


def test_a_short_batch_may_end_the_run() -> None:
    source = _source("algorithm.short_batch=error")
    _drawn(source, 10)
    with pytest.raises(UsageError, match=r"^only 9 of 10 groups teach something after 3 draws"):
        _drawn(source, 3, 3, 3)
