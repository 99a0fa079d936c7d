"""format_match: a score for responses of a given form, whatever their content."""

from __future__ import annotations

from typing import Any

from hybridengine.rlhf.rewards.answers import compiled
from hybridengine.rlhf.rewards.registry import reward


@reward("format")
def format_match(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    pattern: str,
    matched: float = 1.0,
    otherwise: float = 0.0,
) -> float:
    """`matched` where the regular expression `pattern` matches the whole stripped response, else
    `otherwise`. `.` matches line ends too."""
    return matched if compiled(pattern).fullmatch(solution_str.strip()) else otherwise
