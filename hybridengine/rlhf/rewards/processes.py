"""processes: rewards computed in processes that may hang, crash and be replaced.

A *sample's time* runs from when its process turns to it. A process that exceeds it is killed, one
that dies is lost; either way the sample it was at has an error, the others that it held go to
another process, and a new process takes its place. Samples are handed out in chunks.
"""

from __future__ import annotations

import selectors
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from hybridengine._core import UsageError
from hybridengine.rlhf.config.schema import Reward
from hybridengine.rlhf.rewards.process import START_S, RewardProcess
from hybridengine.rlhf.rewards.scoring import Item, Score, Scorer

# Chunks for each process: several, so that none waits for long at the end; few, so that messages
# cost little.
_CHUNKS = 4
_CHUNK_ITEMS = 64


class RewardProcesses:
    """`config.workers` processes; none where the config has no reward function. Not thread-safe.

    They end with `close()`, with this object, or with this process, however it dies.
    """

    def __init__(self, config: Reward) -> None:
        """Starts them without waiting. Throws UsageError as `check` does."""
        self._config = config
        self._num_rewards = len(Scorer.from_config(config))
        self._selector = selectors.DefaultSelector()
        self._processes: set[RewardProcess] = set()
        self._closed = False
        self._finalizer = weakref.finalize(self, _end_all, self._processes, self._selector)
        for _ in range(config.workers if self._num_rewards else 0):
            self._start()

    def score(
        self, items: Sequence[Item], scored: Callable[[], None] = lambda: None
    ) -> list[Score]:
        """One score for each item, in order; 0 with an error for a sample whose reward failed.
        `scored` is called whenever a process has answered, or was given up.

        Throws UsageError where a process cannot start, and with on_error=raise for the first sample
        whose reward failed; the processes are closed then.
        """
        if self._closed:
            raise UsageError("the reward processes are closed. Make new ones.")
        if not self._num_rewards:
            return [Score(0.0) for _ in items]
        task = _Task(items, self._config.workers)
        try:
            self._take_in(task, wait_s=0)  # a process that ended since is not handed anything
            while task.open:
                self._hand_out(task)
                self._collect(task)
                scored()
                if task.failed and self._config.on_error == "raise":
                    what = task.failed[0].rstrip(".")
                    raise UsageError(f"{what}. Mend it, or set reward.on_error=zero.")
        except BaseException:
            self.close()
            raise
        return task.results()

    def close(self) -> None:
        """Kills all processes and waits for their end. May be called again."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> RewardProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        process = RewardProcess(self._config)
        self._processes.add(process)
        self._selector.register(process.frames, selectors.EVENT_READ, process)

    def _hand_out(self, task: _Task) -> None:
        for process in self._processes:
            if process.ready and not process.items and task.chunks:
                process.give(task.chunks.popleft(), task.items)

    def _collect(self, task: _Task) -> None:
        """Waits until something happens, and takes in all that did."""
        self._take_in(task, self._next_deadline())
        now = time.monotonic()
        late = {p for p in self._processes if p.deadline is not None and p.deadline <= now}
        # This process itself may have been held up: what has come meanwhile is in time.
        for process in late - set(self._readable(0) if late else ()):
            limit = f"took more than {self._config.timeout_s:g} s (reward.timeout_s)"
            self._replace(process, task, limit)

    def _readable(self, wait_s: float | None) -> list[RewardProcess]:
        return [key.data for key, _ in self._selector.select(wait_s)]

    def _next_deadline(self) -> float | None:
        """Seconds until then."""
        deadlines = [p.deadline for p in self._processes if p.deadline is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _take_in(self, task: _Task, wait_s: float | None) -> None:
        """What processes have sent, after waiting until one has; replaces those that are gone."""
        for process in self._readable(wait_s):
            values, alive = process.frames.arrived()
            for value in values:
                if isinstance(value, Score):
                    task.done(process.answered(), value)
                elif value is None:
                    process.started()
                else:
                    raise UsageError(str(value))
            if not alive:
                self._replace(process, task, "the process that scored it ended")

    def _replace(self, process: RewardProcess, task: _Task, what: str) -> None:
        self._selector.unregister(process.frames)
        self._processes.discard(process)
        how = process.end()
        if not process.ready:
            raise UsageError(
                f"a reward process was not ready after {START_S:g} s or ended ({how}). "
                f"See what it wrote to stderr."
            )
        task.lost(process.items, f"{what} ({how})")
        self._start()


class _Task:
    """The items of one call, and what is known of them."""

    def __init__(self, items: Sequence[Item], num_processes: int) -> None:
        self.items = items
        self.open = len(items)
        self.failed: list[str] = []
        self._scores: list[Score | None] = [None] * len(items)
        size = min(_CHUNK_ITEMS, max(1, -(-len(items) // (num_processes * _CHUNKS))))
        indices = range(len(items))
        self.chunks = deque(list(indices[i : i + size]) for i in range(0, len(items), size))

    def done(self, index: int, score: Score) -> None:
        self._scores[index] = score
        self.open -= 1
        if score.error is not None:
            self.failed.append(score.error)

    def lost(self, held: deque[int], what: str) -> None:
        """Its process is gone: the first item is to blame, the others are to be scored again."""
        if held:
            index = held.popleft()
            self.done(index, Score(0.0, error=f"{self.items[index].name()}: {what}."))
        if held:
            self.chunks.appendleft(list(held))

    def results(self) -> list[Score]:
        return [score for score in self._scores if score is not None]


def _end_all(processes: set[RewardProcess], selector: selectors.BaseSelector) -> None:
    for process in processes:
        process.end()
    processes.clear()
    selector.close()
