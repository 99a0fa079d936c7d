"""progress: how far a reshard is, on stderr while it is a terminal, and nothing otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

# What ranks tell, in the order in which it happens, and what people read.
_PHASES = {
    "weights": "getting the weights (the first use downloads and converts them)",
    "start": "starting ranks",
    "load": "loading source shards",
    "move": "moving",
    "compare": "comparing with the checkpoint",
}


class Phases:
    """One line for the phase that the slowest news came from. A bar where its size is known."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task
        self._totals: dict[str, int] = {}
        self._current = ""

    def expect(self, phase: str, num_bytes: int) -> None:
        """`phase` is done when this many bytes are."""
        self._totals[phase] = num_bytes

    def enter(self, phase: str) -> None:
        self._current = phase
        self._progress.reset(
            self._task, description=_PHASES[phase], total=self._totals.get(phase), completed=0
        )

    def on_event(self, rank: int, event: tuple[str, int]) -> None:
        """What ranks tell: (phase, bytes done since). The last phase that any rank is in counts."""
        phase, size = event
        order = list(_PHASES)
        if self._current == "" or order.index(phase) > order.index(self._current):
            self.enter(phase)
        if phase == self._current:
            self._progress.advance(self._task, size)


@contextmanager
def show_phases() -> Iterator[Phases]:
    console = Console(stderr=True)
    columns: tuple[Any, ...] = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with progress:
        yield Phases(progress, progress.add_task("", total=None))
