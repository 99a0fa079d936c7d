"""Weak scaling: as many bytes on every rank, on more and more ranks. all_reduce of one array, and a
reshard from chunks of dim 0 to columns, in which a rank lacks all but 1/n of what it ends up with.

*Measured* are 1, 2, 4, ... ranks of this machine. *Modelled* are more, up to 512, by an alpha-beta
model, as if every rank had a core and a link like those measured: all_reduce takes 2 (n - 1)
messages and 2 (n - 1) / n of the bytes, a reshard half of both, and both the time of a call in
which nothing travels, that of one rank. alpha and beta are fitted to the measured rows in which
every rank has a core of its own, with a small and a large array.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hybridengine import _core
from hybridengine._bench import all_reduce, harness, move, plot, results
from hybridengine._bench.bucket_sweep import size_text
from hybridengine._bench.flags import Options, parse
from hybridengine._bench.index import INDEX
from hybridengine._bench.planner_cases import plain_rule
from hybridengine._bench.record import Bench, Case
from hybridengine._bench.world import World, num_cores, run_on_ranks, under_torchrun
from hybridengine._core import UsageError
from hybridengine.layouts.layout import Layout
from hybridengine.layouts.spec import Spec

_DEFAULT_RANKS = 4
_MOST_MODELLED = 512
_SMALL_BYTES = 64 << 10  # where alpha shows
_COLUMNS = 512  # as many ranks can have one each
_PICTURE = "scaling.png"


@dataclass(frozen=True)
class Point:
    """`time_us` of `ranks` ranks with `rank_bytes` each; `kind` is measured or modelled."""

    job: str
    ranks: int
    rank_bytes: int
    time_us: float
    kind: str
    nwrong: int | None = None


@dataclass(frozen=True)
class Model:
    """time = call + messages alpha + bytes / beta, both of one rank; `passes` of the array
    travel."""

    passes: int
    call_us: float
    alpha_us: float
    us_per_byte: float

    def time_us(self, ranks: int, rank_bytes: int) -> float:
        messages, moved = terms(self.passes, ranks, rank_bytes)
        return self.call_us + messages * self.alpha_us + moved * self.us_per_byte


def terms(passes: int, ranks: int, rank_bytes: int) -> tuple[float, float]:
    """The messages and bytes of a rank."""
    return passes * (ranks - 1), passes * (ranks - 1) / ranks * rank_bytes


def fit(passes: int, points: list[Point]) -> Model:
    """Least squares of relative errors, no term below zero. `points` are of one rank, of which the
    fastest gives the time of a call, and of at least two."""
    call_us = min(each.time_us for each in points if each.ranks == 1)
    several = [each for each in points if each.ranks > 1]
    rows = np.array(
        [
            [term / each.time_us for term in terms(passes, each.ranks, each.rank_bytes)]
            for each in several
        ]
    )
    wanted = np.array([max(1 - call_us / each.time_us, 0.0) for each in several])
    best, error = np.zeros(2), float("inf")
    for used in ([0, 1], [0], [1]):
        found = np.zeros(2)
        found[used] = np.linalg.lstsq(rows[:, used], wanted, rcond=None)[0]
        left = float(((rows @ found - wanted) ** 2).sum())
        if (found >= 0).all() and left < error:
            best, error = found, left
    return Model(passes, call_us, float(best[0]), float(best[1]))


def main(arguments: list[str]) -> int:
    """Prints a line per row as it comes; 1 where values were wrong. Throws UsageError."""
    options = parse("scaling", INDEX["scaling"].summary, INDEX["scaling"].flags, arguments)
    picture = options.picture or _PICTURE
    worlds = _worlds(options)
    results.check_path(options.json_path)
    plot.check(picture)
    shared = results.provenance("scaling", arguments)
    silent = options.json_path == "-"
    if not silent:
        _print_header(shared, worlds[-1])
    measured = [point for world in worlds for point in _measured(world, options, silent)]
    models = {job: fit(passes, _calibration(measured, job)) for job, (_, passes) in _JOBS.items()}
    modelled = [
        Point(job, ranks, options.min_bytes, model.time_us(ranks, options.min_bytes), "modelled")
        for job, model in models.items()
        for ranks in _modelled_worlds()
    ]
    if not silent:
        _print_end(modelled, models, picture)
    drawn = plot.Picture(picture, plot.origin(shared))
    _draw(drawn, [each for each in measured if each.rank_bytes == options.min_bytes], modelled)
    if options.json_path is not None:
        rows = [{**shared, **asdict(point)} for point in (*measured, *modelled)]
        results.write(options.json_path, rows)
    return 1 if any(point.nwrong for point in measured) else 0


def _worlds(options: Options) -> list[int]:
    if under_torchrun():
        raise UsageError("scaling starts its own ranks. Run it without torchrun.")
    if options.min_bytes <= _SMALL_BYTES:
        raise UsageError(f"-b {options.min_bytes} is too small: use more than {_SMALL_BYTES}.")
    most = _DEFAULT_RANKS if options.ranks is None else options.ranks
    if most < 2:
        raise UsageError("-g 1: one rank says nothing about more. Use -g 2 or more.")
    return [1 << power for power in range(most.bit_length())]


def _modelled_worlds() -> list[int]:
    return [1 << power for power in range(1, _MOST_MODELLED.bit_length())]


def _calibration(measured: list[Point], job: str) -> list[Point]:
    """Rows in which every rank has a core, and those of two ranks anyway."""
    cores = max(num_cores(), 2)
    return [each for each in measured if each.job == job and each.ranks <= cores]


def _measured(ranks: int, options: Options, silent: bool) -> list[Point]:
    rows = run_on_ranks(
        ranks, ranks, options.transport, options.timeout, lambda _: None, _on_rank, options
    )
    points = [Point(*row) for row in rows]
    if not silent:
        for point in points:
            _print_point(point)
    return points


def _on_rank(world: World, options: Options) -> list[tuple[Any, ...]]:
    """(job, ranks, bytes of a rank, time, kind, wrong elements) of every job and size."""
    rows = []
    for job, (bench, _) in _JOBS.items():
        for size in (_SMALL_BYTES, options.min_bytes):
            sized = replace(options, min_bytes=size, max_bytes=size)
            found = harness.measure(world, replace(bench, halves=(True,)), sized)
            ours = next(row for row in found if row["rival"] is None)
            rows.append((job, world.size, size, ours["wall_us"], "measured", ours["nwrong"]))
    return rows


def _cases(options: Options) -> list[Case]:
    return [Case(options.min_bytes, "bfloat16")]


def _setup(world: World, options: Options, case: Case, in_place: bool) -> move.MoveJob:
    """A matrix that grows with the ranks."""
    rows = case.size_bytes * world.size // (2 * _COLUMNS)
    spec = Spec.from_tensors([("matrix", (rows, _COLUMNS), case.dtype)])
    chunks = plain_rule("chunks", world.size, [_core.Cut(0, 0, "chunk")])
    columns = plain_rule("columns", world.size, [_core.Cut(1, 0, "even")])
    src, dst = (Layout(_core.bind(rule, spec.core), spec) for rule in (chunks, columns))
    return move.MoveJob(world, options, src, dst, in_place)


_RESHARD = Bench(
    name="reshard",
    flags=(),
    ranks=lambda options: 1,
    cases=_cases,
    setup=_setup,
    fill=move.fill,
    run=move.run,
    count_wrong=move.count_wrong,
    volume=move.volume,
)
_JOBS = {"all_reduce": (all_reduce.BENCH, 2), "reshard": (_RESHARD, 1)}


def _print_header(shared: dict[str, Any], most: int) -> None:
    sys.stdout.write(f"# hybridengine {shared['version']} (commit {shared['commit']}), scaling\n")
    if most > num_cores():
        sys.stdout.write(f"# More ranks than {_cores()}: rows that say so, hollow in the picture\n")
    sys.stdout.write(
        f"#{'ranks':>7}{'of a rank':>14}{'time':>14}{'rate':>10}  kind      job\n"
        f"#{'':>7}{'(B)':>14}{'(us)':>14}{'(GB/s)':>10}\n"
    )


def _print_point(point: Point) -> None:
    """The rate is a rank's bytes over the time."""
    sys.stdout.write(
        f"{point.ranks:8d}{point.rank_bytes:14d}{point.time_us:14.1f}"
        f"{point.rank_bytes / point.time_us / 1e3:10.2f}  {point.kind:<8}  {point.job}"
        f"{f'  # {point.ranks} ranks on {_cores()}' if _shares_cores(point) else ''}\n"
    )
    sys.stdout.flush()


def _shares_cores(point: Point) -> bool:
    return point.kind == "measured" and point.ranks > num_cores()


def _cores() -> str:
    return "1 core" if num_cores() == 1 else f"{num_cores()} cores"


def _print_end(modelled: list[Point], models: dict[str, Model], picture: str) -> None:
    for point in modelled:
        _print_point(point)
    for job, model in models.items():
        rate = f"{1 / model.us_per_byte / 1e3:.2f} GB/s" if model.us_per_byte else "no limit"
        sys.stdout.write(
            f"# {job}: call {model.call_us:.1f} us, alpha {model.alpha_us:.1f} us a message, "
            f"beta {rate}\n"
        )
    sys.stdout.write(f"# drawn in {picture}\n")


def _draw(picture: plot.Picture, measured: list[Point], modelled: list[Point]) -> None:
    curves = []
    for colour, job in enumerate(_JOBS):
        for kind, points in (("measured", measured), ("modelled", modelled)):
            mine = [each for each in points if each.job == job]
            ranks = [float(each.ranks) for each in mine]
            times = [each.time_us / 1e3 for each in mine]
            hollow = tuple(float(each.ranks) for each in mine if _shares_cores(each))
            label = f"{job}, {kind}" + (f" (hollow: ranks share {_cores()})" if hollow else "")
            curves.append(plot.Curve(label, ranks, times, colour, kind == "modelled", hollow))
    size = size_text(measured[0].rank_bytes)
    chart = plot.Chart("ranks", "time (ms)", curves, log_x=True, log_y=True)
    plot.draw(picture, f"weak scaling, {size} on every rank", [chart])
