"""gym_score: the scorer that belongs to a reasoning-gym generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.rewards.answers import find_answer
from hybridengine.rlhf.rewards.registry import reward
from hybridengine.wording import nearest

# Imported by a reward process before the first sample's time runs.
LIBRARIES = ("reasoning_gym",)


@reward("gym")
def gym_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    final_answer: Sequence[str] = (),
) -> float:
    """From 0 to 1, as the generator `data_source` scores an answer to the entry `extra_info`
    (question, answer, metadata). Scorers of some generators give part of the score for part of
    the answer. `final_answer`: as of exact_match.
    """
    if not isinstance(extra_info, dict) or not {"answer", "metadata"} <= set(extra_info):
        raise UsageError(
            "extra is no entry of reasoning-gym (question, answer, metadata). "
            "Use reward 'gym' with data.gym, or another reward."
        )
    answer = find_answer(solution_str, final_answer)
    return float(_scorer(data_source)(answer, extra_info))


@lru_cache(maxsize=64)
def _scorer(name: str) -> Callable[[str | None, Any], float]:
    from reasoning_gym.factory import (  # type: ignore[import-untyped]
        DATASETS,
        get_score_answer_fn,
    )

    if name not in DATASETS:
        raise UsageError(
            f"reasoning-gym has no generator {name!r} to score for. Use {nearest(name, DATASETS)}."
        )
    score: Callable[[str | None, Any], float] = get_score_answer_fn(name)
    return score
