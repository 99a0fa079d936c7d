"""length: shapes the reward by the number of characters of a response.

Not DAPO's overlong penalty, which counts tokens: that is algorithm.overlong_buffer.
"""

from __future__ import annotations

from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.rewards.registry import reward


@reward("length")
def length(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    target: int | None = None,
    limit: int | None = None,
    width: int = 100,
) -> float:
    """With a `target`: 1 at that many characters, falling to 0 at `width` characters beside it.
    With a `limit`: 0 up to it, falling to -1 at `width` characters beyond. Both: their sum.
    """
    if width <= 0 or (target is None and limit is None):
        raise UsageError(
            f"reward 'length' has target {target}, limit {limit}, width {width}. "
            f"Set target or limit in reward.options.length, and a width above 0."
        )
    count = len(solution_str)
    score = 0.0
    if target is not None:
        score += max(0.0, 1 - abs(count - target) / width)
    if limit is not None:
        score -= min(1.0, max(0, count - limit) / width)
    return score
