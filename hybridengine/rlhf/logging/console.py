"""console: a step a line, for good: what has scrolled by stays as it is.

On a terminal a bar below the lines says how far the run is, and goes when it ends. Elsewhere the
same lines are written without it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hybridengine.rlhf.logging.columns import Column, chosen_columns, line_of
from hybridengine.rlhf.logging.screen import open_screen

_HEADING_ROWS = 20  # of steps below a heading, so that a screen of 24 lines has one
_REFRESH_PER_SECOND = 4
_EVALUATION = "eval/"
_FORMS = {"accuracy": "{:.1%}", "errors": "{:,.0f}"}  # by the last part of the name
_UNSAID = ("length", "truncated", "pass@1")  # of an evaluation; metrics.jsonl has them
_ERRORS = "/errors"


class ConsoleLines:
    """A line a step under a heading, and one for each evaluation, when it happens."""

    def __init__(self, steps: int | None, screen: Console | None = None) -> None:
        self._screen = open_screen() if screen is None else screen
        self._step_width = max(len("step"), len(str(steps)))
        self._known: set[str] = set()  # metrics that any step has had
        self._columns: list[Column] = []
        self._rows_left = 0  # before the next heading
        self._bar = Progress(
            TextColumn("step"),
            BarColumn(bar_width=None),  # what the others leave of the line
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._screen,
            refresh_per_second=_REFRESH_PER_SECOND,
            transient=True,
            expand=True,
            redirect_stderr=sys.stderr.isatty(),  # what others write stands above the bar
            disable=not self._screen.is_terminal,
        )
        self._task = self._bar.add_task("", total=steps)
        self._bar.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        row = {name: value for name, value in metrics.items() if not name.startswith(_EVALUATION)}
        if row:
            self._bar.update(self._task, completed=step)
            self._write_row(step, row)
        if len(row) < len(metrics):
            self._write_evaluation(step, metrics)

    def close(self) -> None:
        self._bar.stop()

    def _write_row(self, step: int, metrics: Mapping[str, float]) -> None:
        self._known |= {name for name, value in metrics.items() if _tells(name, value)}
        columns = chosen_columns(self._known, self._screen.width - self._step_width)
        if self._rows_left == 0 or columns != self._columns:
            self._columns, self._rows_left = columns, _HEADING_ROWS
            self._write("step", [column.title for column in columns], style="bold")
        self._rows_left -= 1
        self._write(str(step), [column.cell(metrics) for column in columns])

    def _write(self, step: str, cells: list[str], style: str | None = None) -> None:
        widths = [self._step_width, *(column.width for column in self._columns)]
        self._screen.print(line_of([step, *cells], widths), style=style, soft_wrap=True)

    def _write_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        facts = ", ".join(
            f"{name.removeprefix(_EVALUATION)} {_FORMS.get(_leaf(name), '{:.3f}').format(value)}"
            for name, value in metrics.items()
            if name.startswith(_EVALUATION) and _leaf(name) not in _UNSAID and _tells(name, value)
        )
        when = f"after step {step}" if step else "before the first step"
        self._screen.print(f"evaluation {when}: {facts}", soft_wrap=True)


def _leaf(name: str) -> str:
    return name.rpartition("/")[2]


def _tells(name: str, value: float) -> bool:
    """No errors are no news."""
    return value != 0 or not name.endswith(_ERRORS)
