"""console: a step a row, live on a terminal and as plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_LIVE_ROWS = 12
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
        self._rows: list[list[str]] = []
        self._lines = 0
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
        row = [str(step)] + [
            column.form(metrics[column.metric]) if column.metric in metrics else "-"
            for column in COLUMNS
        ]
        self._progress.update(self._task, completed=step)
        if self._live is None:
            self._print_line(row)
            return
        self._rows = [*self._rows, row][-_LIVE_ROWS:]
        self._live.update(self._view())

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _view(self) -> Group:
        table = Table("step", *(column.title for column in COLUMNS), box=None, pad_edge=False)
        for column in table.columns:
            column.justify = "right"
        for row in self._rows:
            table.add_row(*row)
        return Group(table, self._progress)

    def _print_line(self, row: list[str]) -> None:
        titles = ["step", *(column.title for column in COLUMNS)]
        widths = [max(len(title), 8) for title in titles]
        if self._lines == 0:
            self._write(titles, widths)
        self._lines += 1
        self._write(row, widths)

    def _write(self, cells: list[str], widths: list[int]) -> None:
        line = " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        self._console.print(line, soft_wrap=True, highlight=False)
