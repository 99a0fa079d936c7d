"""answers: the final answer within a response, by regular expressions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from hybridengine._core import UsageError


def find_answer(solution: str, patterns: Sequence[str]) -> str | None:
    """What the first pattern that occurs matches last: its first group, or all of it; stripped.

    Without patterns, the whole solution; None where no pattern occurs. `.` matches line ends too.
    """
    if not patterns:
        return solution.strip()
    for pattern in patterns:
        found = list(compiled(pattern).finditer(solution))
        if found:
            answer = found[-1].group(1 if found[-1].re.groups else 0)
            return (answer or "").strip()
    return None


@lru_cache(maxsize=64)
def compiled(pattern: str) -> re.Pattern[str]:
    """Throws UsageError for what is no regular expression."""
    try:
        return re.compile(pattern, re.DOTALL)
    except (re.error, TypeError) as error:
        raise UsageError(
            f"{pattern!r} is no regular expression: {error}. Mend it in reward.options."
        ) from error
