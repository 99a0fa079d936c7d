"""clock: where the time of a step went, by phase, and how much of it no role was computing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Clock:
    """Of one step. A *phase* is wall time of the controller; *busy* is the time in which roles
    computed, as they report it."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._phases: dict[str, float] = {}
        self._busy = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - began

    def busy(self, seconds: Sequence[float]) -> None:
        """One call on a group took its ranks these seconds: the slowest counts."""
        self._busy += max(seconds, default=0.0)

    def seconds(self, name: str) -> float:
        return self._phases.get(name, 0.0)

    def metrics(self) -> dict[str, float]:
        step = time.perf_counter() - self._began
        return {
            "time/step": step,
            "time/controller": max(step - self._busy, 0.0),
            **{f"time/{name}": seconds for name, seconds in self._phases.items()},
        }
