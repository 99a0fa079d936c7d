"""Pictures of sweeps: curves of measured points, and of modelled ones, which are dashed.

matplotlib is optional and imported here alone; a bench asks for it before it measures.
"""

from __future__ import annotations

import importlib
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridengine._bench.results import check_path
from hybridengine._core import UsageError

_SIZE_INCHES = (7.0, 4.5)  # of one chart
_ORIGIN_POINTS, _ORIGIN_CHARS = 7, 130  # of a line below one chart


@dataclass(frozen=True)
class Picture:
    """A file to draw into, and where its numbers come from: command, commit and machine."""

    path: str
    origin: str


@dataclass(frozen=True)
class Curve:
    """Points in the order of `x`. Curves of one colour number belong together. Of `hollow` points
    only the rim is drawn: they were measured under other circumstances than the rest."""

    label: str
    x: list[float]
    y: list[float]
    colour: int
    modelled: bool = False
    hollow: tuple[float, ...] = ()


@dataclass(frozen=True)
class Chart:
    """One pair of axes. `log_x` and `log_y`: to the bases 2 and 10."""

    x_label: str
    y_label: str
    curves: list[Curve]
    log_x: bool = False
    log_y: bool = False


def check(picture: str) -> None:
    """Throws UsageError where matplotlib or the folder of `picture` is missing, or its name is not
    that of a PNG."""
    if not picture.endswith(".png"):
        raise UsageError(f"{picture} is no PNG. Give --png a name that ends in .png.")
    check_path(picture)
    _figure_class()


def origin(shared: dict[str, Any]) -> str:
    """What results.provenance() returned, in two lines."""
    machine = shared["machine"]
    return (
        f"{shared['command']}\ncommit {shared['commit']}, {shared['started'][:10]}, "
        f"{machine['cpu']}, {machine['cores']} cores"
    )


def draw(picture: Picture, title: str, charts: list[Chart]) -> None:
    """Writes `charts`, side by side, with the picture's origin below them."""
    width, height = _SIZE_INCHES
    figure = _figure_class()(figsize=(width * len(charts), height), layout="constrained")
    figure.suptitle(title)
    lines = [
        part
        for line in picture.origin.splitlines()
        for part in textwrap.wrap(line, _ORIGIN_CHARS * len(charts))
    ]
    figure.supxlabel("\n".join(lines), fontsize=_ORIGIN_POINTS, color="gray", x=0.01, ha="left")
    for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        draw_chart(axes, chart)
    try:
        figure.savefig(Path(picture.path), dpi=120)
    except OSError as error:
        raise UsageError(
            f"cannot write {picture.path}: {error.strerror}. Name another file."
        ) from error


def draw_chart(axes: Any, chart: Chart) -> None:
    for curve in chart.curves:
        axes.plot(
            curve.x,
            curve.y,
            color=f"C{curve.colour}",
            linestyle="--" if curve.modelled else "-",
            marker="" if curve.modelled else "o",
            label=curve.label,
        )
        rims = [at for at, x in enumerate(curve.x) if x in curve.hollow]
        if rims:
            axes.plot(
                [curve.x[at] for at in rims],
                [curve.y[at] for at in rims],
                linestyle="",
                marker="o",
                color=f"C{curve.colour}",
                markerfacecolor="white",
                zorder=3,
            )
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.log_x:
        axes.set_xscale("log", base=2)
        places = sorted({x for curve in chart.curves for x in curve.x})
        axes.set_xticks(places, labels=[f"{x:g}" for x in places])
    if chart.log_y:
        axes.set_yscale("log")
    axes.grid(True, alpha=0.3)
    axes.legend()


def _figure_class() -> Any:
    """matplotlib's Figure, which draws into files without a display."""
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise UsageError(
            f"cannot draw: {error}. pip install 'hybridengine[bench]', or leave the picture out."
        ) from error
