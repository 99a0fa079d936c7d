"""columns: which numbers of a step its line on the console has, by the width that there is.

A step is one line, and no number and no word of it is cut: columns that do not fit are left out,
the least important first. Everything is in metrics.jsonl.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from hybridengine.wording import human_bytes

_GAP = "  "


@dataclass(frozen=True)
class Column:
    """Shown once a step has had `metric`. Cells that are wider than `width` give up decimals."""

    title: str
    metric: str
    width: int
    form: Callable[[float], str]
    bound: str = ""  # a second metric that the first is compared with

    def cell(self, metrics: Mapping[str, float]) -> str:
        if self.metric not in metrics:
            return "-"
        value = metrics[self.metric]
        text = self.form(value)
        if self.bound in metrics:
            text += _compared(value, metrics[self.bound])
        short = (text, f"{value:.1e}", f"{value:.0e}")
        return next(each for each in short if len(each) <= self.width)


def _compared(value: float, bound: float) -> str:
    """Behind a number: " =" if it is the bound, else how many times that."""
    if value == bound:
        return " ="
    return f" {value / bound:.2f}x" if bound else " >0"


def _seconds(value: float) -> str:
    """Three digits."""
    if not math.isfinite(value):
        return f"{value}"
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}s"


def _bytes(value: float) -> str:
    return human_bytes(round(value)) if math.isfinite(value) else f"{value}"


_three, _four, _whole = "{:z.3f}".format, "{:z.4f}".format, "{:,.0f}".format
_percent = "{:.1%}".format

# In the order in which they stand.
COLUMNS = (
    Column("loss", "reward_model/loss", 7, _four),
    Column("accuracy", "reward_model/accuracy", 8, _percent),
    Column("grad", "reward_model/grad_norm", 7, _three),
    Column("reward", "reward/mean", 7, _three),
    Column("errors", "reward/errors", 6, _whole),
    Column("KL", "actor/ref_kl", 7, _four),
    Column("clip", "actor/clip_share", 6, _percent),
    Column("entropy", "actor/entropy", 7, _three),
    Column("length", "rollout/length", 6, "{:.1f}".format),
    Column("tok/s", "time/tokens_per_second", 7, _whole),
    Column("rollout", "time/rollout", 7, _seconds),
    Column("scoring", "time/reward", 7, _seconds),
    Column("update", "time/update", 7, _seconds),
    Column("reshard", "time/reshard", 7, _seconds),
    Column("time", "time/step", 6, _seconds),
    Column("moved", "reshard/received_bytes", 13, _bytes, bound="reshard/bound_bytes"),
)
# The same, the most important first.
_IMPORTANCE = (
    "reward_model/loss",
    "reward_model/accuracy",
    "reward/mean",
    "reward/errors",
    "actor/ref_kl",
    "time/tokens_per_second",
    "actor/entropy",
    "actor/clip_share",
    "time/update",
    "time/rollout",
    "time/reshard",
    "reward_model/grad_norm",
    "reshard/received_bytes",
    "rollout/length",
    "time/step",
    "time/reward",
)


def chosen_columns(known: Collection[str], width: int) -> list[Column]:
    """Those of the metrics `known` that fit into `width`, in the order in which they stand."""
    by_metric = {column.metric: column for column in COLUMNS}
    chosen: set[str] = set()
    for metric in _IMPORTANCE:
        if metric in known:
            width -= len(_GAP) + by_metric[metric].width
            if width < 0:
                break
            chosen.add(metric)
    return [column for column in COLUMNS if column.metric in chosen]


def line_of(cells: list[str], widths: list[int]) -> str:
    """Cells to the right of their columns."""
    return _GAP.join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
