"""registry: the names of reward functions.

A reward is `f(data_source, solution_str, ground_truth, extra_info=None, *, options...)`, called by
keywords, and returns a number, or a dict with the number under "score" and others to log. Options
are its keyword-only arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from hybridengine.rlhf.registry import Registry

Returned: TypeAlias = float | Mapping[str, Any]

reward: Registry[Returned] = Registry("reward")
