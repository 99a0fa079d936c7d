"""batches: the scored rows that steps learn from, one batch after the other.

With `trainer.staleness=0` a batch is made when it is taken, by the weights of the step before. With
1 the next one is made, on ranks of its own, while the learner trains: by the weights before those.
What is made ahead is not part of a checkpoint: a run that goes on makes it again.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Any

from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.scored import Scored
from hybridengine.rlhf.trainer.source import Source
from hybridengine.rlhf.trainer.step import Steps


@dataclass(frozen=True)
class Made:
    """A batch. `version`: the step whose weights drew it. `clock`: what its making took."""

    scored: Scored
    metrics: dict[str, float]
    baselines: list[float] | None
    version: int
    clock: Clock


class Batches:
    """Those of `source`. Calls on `steps` that need the rollout are made between take() and
    make_next(), or behind settle(): while a batch is made ahead the rollout is busy."""

    def __init__(self, source: Source, steps: Steps) -> None:
        self._source, self._steps = source, steps
        self._next: Future[Made] | None = None
        self._before: dict[str, Any] = {}  # where the source stood before the next batch was drawn

    def state_dict(self) -> dict[str, Any]:
        """Where the source stands, less what was made ahead."""
        return self._source.state_dict() if self._next is None else self._before

    def take(self, clock: Clock) -> Made:
        """The next batch: waits for it, or makes it now, at the cost of `clock`. Throws what went
        wrong in its making."""
        if self._next is None:
            return self._make(clock)
        began = time.perf_counter()
        made = self._next.result()
        clock.busy("waiting", [time.perf_counter() - began])
        self._next = None
        return made

    def make_next(self) -> None:
        """Begins to make the next batch, with the weights that the rollout has now."""
        self._before = self._source.state_dict()
        self._next = Future()
        # Not waited for where the run ends early: the end of its ranks ends it too.
        Thread(target=self._fulfil, args=(self._next,), daemon=True, name="next batch").start()

    def settle(self) -> None:
        """Waits until nothing is being made; a failure is told by take()."""
        if self._next is not None:
            self._next.exception()

    def _fulfil(self, made: Future[Made]) -> None:
        try:
            made.set_result(self._make(Clock()))
        except BaseException as error:
            made.set_exception(error)

    def _make(self, clock: Clock) -> Made:
        version = self._steps.version
        scored, metrics = self._source.rollouts(self._steps, clock)
        baselines = self._source.baselines(self._steps, scored, clock) if len(scored.rows) else None
        return Made(scored, metrics, baselines, version, clock)
