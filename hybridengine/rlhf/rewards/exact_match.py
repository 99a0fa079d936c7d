"""exact_match: 1 for the very text of the ground truth, else 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.rewards.answers import find_answer
from hybridengine.rlhf.rewards.registry import reward

# Data without one is refused before a run.
NEEDS_GROUND_TRUTH = True


@reward("exact_match")
def exact_match(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    ignore_case: bool = False,
    final_answer: Sequence[str] = (),
) -> float:
    """Both are stripped. `final_answer`: regular expressions of which the first that
    occurs gives the answer, at its last match. A ground truth that is a list has several answers.
    """
    if ground_truth is None:
        raise UsageError("there is no ground truth to match. Set data.ground_truth_key.")
    answer = find_answer(solution_str, final_answer)
    if answer is None:
        return 0.0
    accepted = ground_truth if isinstance(ground_truth, (list, tuple)) else [ground_truth]
    texts = [str(text).strip() for text in accepted]
    if ignore_case:
        return float(answer.casefold() in [text.casefold() for text in texts])
    return float(answer in texts)
