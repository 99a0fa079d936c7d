"""clock: where the time of a step went: which stage computed, and when none did."""

from __future__ import annotations

import time
from collections.abc import Sequence


class Clock:
    """Of one step, from its making on. Stages are what roles report; the rest of the step is the
    controller's: deciding, sending, receiving."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._stages: dict[str, float] = {}

    def busy(self, stage: str, seconds: Sequence[float]) -> None:
        """One call on a group took its ranks these seconds: the slowest counts."""
        longest = max(seconds, default=0.0)
        self._stages[stage] = self._stages.get(stage, 0.0) + longest

    def seconds(self, name: str) -> float:
        return self._stages.get(name, 0.0)

    def stages(self) -> dict[str, float]:
        return {f"time/{name}": seconds for name, seconds in self._stages.items()}

    def metrics(self) -> dict[str, float]:
        step = time.perf_counter() - self._began
        return {
            "time/step": step,
            "time/controller": max(step - sum(self._stages.values()), 0.0),
            **self.stages(),
        }
