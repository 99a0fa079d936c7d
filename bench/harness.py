"""The part of a benchmark that is the same for all: on every rank, in step.

For each case and half: memcpy, ours, then the rivals, one after the other on the same job, so that
they see the same machine. Each runs `-w` times untimed, then `-n` times, all ranks starting
together; the row's time is the median over iterations of what `-a` makes of the ranks' times, and
its wall, which ratios compare, the median of the slowest rank's. Where ranks wait for each other
anyway, an iteration repeats what is short until it lasts a while, unless `-m` says how often: a
start together is only as exact as the scheduler. Verification comes after timing and is not timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hybridengine._bench import table
from hybridengine._bench.flags import Options
from hybridengine._bench.memcpy import MemcpyJob
from hybridengine._bench.record import Bench, Case, Unfit, Volume
from hybridengine._bench.world import World
from hybridengine._core import UsageError

_MEMCPY = "memcpy"
_OURS = ""
_GLOO = "gloo"
_ITERATION_US, _MOST_REPEATS, _A_FEW = 1000.0, 100, 4
_AVERAGE: dict[int, Callable[[Any], float]] = {
    0: lambda ranks: float(ranks[0]),
    1: statistics.fmean,
    2: min,
    3: max,
}


@dataclass(frozen=True)
class Timing:
    time_us: float
    wall_us: float
    first_us: float | None  # of the first untimed run, where there was one


def measure(world: World, bench: Bench, options: Options) -> list[dict[str, Any]]:
    """All rows of the bench. Collective; tells ("devices", ...), ("row", ...), ("note", text)."""
    rivals = chosen_rivals(bench, options.rivals)
    world.tell(("devices", {"transport": transport(world, bench), "ranks": world.who()}))
    rows = []
    for case in bench.cases(options):
        for row in _case_rows(world, bench, options, case, rivals):
            world.tell(("row", row))
            rows.append(row)
    return rows


def transport(world: World, bench: Bench) -> str:
    return world.comm.transport if bench.travels else "none"


def chosen_rivals(bench: Bench, names: tuple[str, ...]) -> list[str]:
    """Those that are measured, in the bench's order; `gloo` stands for those over plain gloo.
    Throws UsageError on a rival that the bench does not have."""
    chosen = set(bench.always)
    for name in names:
        meant = [each for each in bench.rivals if name in (each, "all") or _is_gloo(name, each)]
        if not meant:
            raise UsageError(
                f"{name!r} is no rival of {bench.name}. Use all, or some of "
                f"{', '.join(bench.rivals)}."
            )
        chosen.update(meant)
    return [name for name in bench.rivals if name in chosen]


def _is_gloo(name: str, rival: str) -> bool:
    return name == _GLOO and rival.startswith(f"{_GLOO}_")


def _case_rows(
    world: World, bench: Bench, options: Options, case: Case, rivals: list[str]
) -> list[dict[str, Any]]:
    halves: dict[bool, dict[str, dict[str, Any]]] = {}
    for in_place in bench.halves:
        halves[in_place], volume, most = _measure_half(
            world, bench, options, case, rivals, in_place
        )
    rows = []
    for name in halves[bench.halves[0]]:
        both = [halves.get(in_place, {}).get(name) for in_place in (False, True)]
        is_memcpy = name == _MEMCPY
        size, count = (most, most) if is_memcpy else (volume.size_bytes, volume.count)
        rows.append(
            {
                "size": size,
                "count": count,
                "type": "uint8" if is_memcpy else table.type_name(case.dtype),
                "redop": case.op,
                "root": case.root,
                "rival": name or None,
                "case": case.label or None,
                **_flat(both),
                "out_of_place": both[0],
                "in_place": both[1],
                "transport": transport(world, bench),
                "num_ranks": world.size,
                **volume.facts,
            }
        )
    return rows


def _measure_half(
    world: World, bench: Bench, options: Options, case: Case, rivals: list[str], in_place: bool
) -> tuple[dict[str, dict[str, Any]], Volume, int]:
    """Each contender's half of its row; the job's volume; the most bytes that a rank receives."""
    job = bench.setup(world, options, case, in_place)
    bench.fill(job, 0)
    volume = bench.volume(job)
    most = max(world.gather(volume.received_bytes))
    timings: dict[str, Timing] = {}
    wrong: dict[str, int | None] = {}
    if most > 0:
        copy = MemcpyJob(volume.received_bytes)
        timings[_MEMCPY] = time_runs(world, copy.run, options, bench.repeats_short)
        wrong[_MEMCPY] = world.total(copy.count_wrong()) if options.check else None
        del copy
    for name in (_OURS, *rivals):
        run = _runner(world, bench, job, name)
        if run is None:
            continue
        timings[name] = time_runs(world, run, options, bench.repeats_short)
        wrong[name] = _verify(world, bench, job, run, options.check)
        del run
    half = {}
    for name, timing in timings.items():
        size = most if name == _MEMCPY else volume.size_bytes
        factor = 1.0 if name == _MEMCPY else volume.bus_factor
        half[name] = _half(timing, size, factor, wrong[name])
        half[name] |= _ratios(timings, name)
    return half, volume, most


def _runner(world: World, bench: Bench, job: Any, name: str) -> Callable[[], Any] | None:
    """What is timed; None, with a note, where a rival cannot do this job."""
    if name == _OURS:
        return lambda: bench.run(job)
    try:
        return bench.rivals[name](world, job)
    except Unfit as reason:
        world.tell(("note", f"rival {name} is left out: {reason}"))
        return None


def time_runs(
    world: World, run: Callable[[], Any], options: Options, repeats_short: bool
) -> Timing:
    warmed = [_iteration(world, run, 1) for _ in range(options.warmup)]
    repeats = 1 if options.agg_iters is None else options.agg_iters
    if options.agg_iters is None and repeats_short:
        repeats = _fitting(world, run)
    mine = [_iteration(world, run, repeats) for _ in range(options.iters)]
    first = warmed[0] if warmed else None
    ranks = world.gather({"first": first, "timed": mine})
    iterations = list(zip(*(each["timed"] for each in ranks), strict=True))
    return Timing(
        statistics.median(_AVERAGE[options.average](each) for each in iterations),
        statistics.median(max(each) for each in iterations),
        None if first is None else max(each["first"] for each in ranks),
    )


def _fitting(world: World, run: Callable[[], Any]) -> int:
    """Runs that make an iteration. One alone says too little: ranks do not start as one."""
    if max(world.gather(_iteration(world, run, 1))) > _A_FEW * _ITERATION_US:
        return 1
    took = max(world.gather(_iteration(world, run, _A_FEW)))
    return max(int(min(_ITERATION_US / max(took, 1e-3), _MOST_REPEATS)), 1)


def _iteration(world: World, run: Callable[[], Any], repeats: int) -> float:
    """Microseconds of one run, of `repeats` on end. Results are dropped outside of the time."""
    world.barrier()
    began = time.perf_counter_ns()
    for _ in range(repeats):
        results = run()
    took = (time.perf_counter_ns() - began) / 1e3 / repeats
    del results
    return took


def _verify(
    world: World, bench: Bench, job: Any, run: Callable[[], Any], rounds: int
) -> int | None:
    """Wrong elements of all ranks in the first round that has any; None without rounds."""
    for number in range(1, rounds + 1):
        bench.fill(job, number)
        world.barrier()
        wrong = world.total(bench.count_wrong(job, run()))
        if wrong or number == rounds:
            return wrong
    return None


def _half(timing: Timing, size: int, bus_factor: float, wrong: int | None) -> dict[str, Any]:
    algbw = size / timing.time_us / 1e3
    return {
        "time_us": timing.time_us,
        "wall_us": timing.wall_us,
        "first_us": timing.first_us,
        "algbw": algbw,
        "busbw": algbw * bus_factor,
        "nwrong": wrong,
    }


def _ratios(timings: dict[str, Timing], name: str) -> dict[str, float | None]:
    """memcpy_ratio: the rate over that of memcpy. rival_ratio: the rival's time over ours."""
    wall = timings[name].wall_us
    copied = timings.get(_MEMCPY)
    return {
        "memcpy_ratio": None if copied is None else copied.wall_us / wall,
        "rival_ratio": None if name == _OURS else wall / timings[_OURS].wall_us,
    }


def _flat(halves: list[dict[str, Any] | None]) -> dict[str, Any]:
    """The keys of the first half that was measured, and the wrong elements of both."""
    measured = [half for half in halves if half is not None]
    counted = [half["nwrong"] for half in measured if half["nwrong"] is not None]
    return {**measured[0], "nwrong": sum(counted) if counted else None}
