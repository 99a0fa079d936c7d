"""console: a step a row, live on a terminal and as plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_LIVE_ROWS = 12
_LEAST_WIDTH = 8  # of a column in lines
_MAX_NAMED = 8
_REFRESH_PER_SECOND = 4


@dataclass(frozen=True)
class Column:
    title: str
    metric: str
    form: Callable[[float], str]


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


COLUMNS = (
    Column("reward", "reward/mean", "{:.3f}".format),
    Column("KL", "actor/ref_kl", "{:.4f}".format),
    Column("clipped", "actor/clip_share", "{:.1%}".format),
    Column("entropy", "actor/entropy", "{:.3f}".format),
    Column("tok/s", "time/tokens_per_second", "{:,.0f}".format),
    Column("rollout s", "time/rollout", "{:.2f}".format),
    Column("reward s", "time/reward", "{:.2f}".format),
    Column("update s", "time/update", "{:.2f}".format),
    Column("reshard s", "time/reshard", "{:.3f}".format),
    Column("moved", "reshard/received_bytes", _bytes),
    Column("bound", "reshard/bound_bytes", _bytes),
)


class ConsoleTable:
    """The latest steps as a table with a progress bar; where stdout is no terminal, a line a step
    under a heading."""

    def __init__(self, steps: int | None, console: Console | None = None) -> None:
        self._console = Console() if console is None else console
        self._columns: list[Column] = []  # known with the first step
        self._rows: list[list[str]] = []
        self._live: Live | None = None
        self._progress = Progress(
            TextColumn("step"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self._progress.add_task("step", total=steps)
        if self._console.is_terminal:
            self._live = Live(
                self._view(), console=self._console, refresh_per_second=_REFRESH_PER_SECOND
            )
            self._live.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == 0 or self._is_aside(metrics):
            facts = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            when = f"after step {step}" if step else "before the first step"
            self._console.print(f"{when}: {facts}", highlight=False)
            return
        if not self._columns:
            self._columns = chosen_columns(metrics)
            if self._live is None:
                self._write(self._titles())
        row = [str(step)] + [
            column.form(metrics[column.metric]) if column.metric in metrics else "-"
            for column in self._columns
        ]
        self._progress.update(self._task, completed=step)
        if self._live is None:
            self._write(row)
            return
        self._rows = [*self._rows, row][-_LIVE_ROWS:]
        self._live.update(self._view())

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _is_aside(self, metrics: Mapping[str, float]) -> bool:
        """An evaluation by itself, not a step."""
        known = {column.metric for column in self._columns}
        return bool(known) and not known & set(metrics)

    def _view(self) -> Group:
        table = Table(*self._titles(), box=None, pad_edge=False)
        for column in table.columns:
            column.justify = "right"
        for row in self._rows:
            table.add_row(*row)
        return Group(table, self._progress)

    def _titles(self) -> list[str]:
        return ["step", *(column.title for column in self._columns)]

    def _write(self, cells: list[str]) -> None:
        widths = [max(len(title), _LEAST_WIDTH) for title in self._titles()]
        line = " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        self._console.print(line, soft_wrap=True, highlight=False)


def chosen_columns(metrics: Mapping[str, float]) -> list[Column]:
    """Those of COLUMNS that there are numbers for; where there are none, the metrics by name."""
    known = [column for column in COLUMNS if column.metric in metrics]
    return known or [Column(name, name, "{:.4g}".format) for name in list(metrics)[:_MAX_NAMED]]
