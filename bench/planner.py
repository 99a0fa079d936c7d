"""Seconds to bind, plan and schedule models that exist only as shapes. One core, no weights.

The schedule is that of one rank, the lowest that both sends and receives; `own` are its moves.
`moe` is shaped like Qwen3-30B-A3B (18 867 tensors), from 16 ranks in two pipeline stages, with the
experts of a stage spread over its 8 ranks, to 4 replicas of tensor parallelism over 4. `moe-671b`
is shaped like DeepSeek-V3, from 512 ranks in 16 stages to 256 ranks with an expert of each layer
and all the rest on each. The source of both is laid out by hand, so only the destination is bound.
`llama-70b-N` goes from `fsdp2(N)` to `vllm(tp=8,dp=32)`, 256 ranks. The others take small matrices
from 16 chunks of dim 0 to tensor parallelism over 4 ranks, or whole onto 4. `peak` is the most
resident memory of a process that does it once: interpreter, spec and all.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from hybridengine import _core
from hybridengine._bench import results
from hybridengine._bench.flags import Options, parse
from hybridengine._bench.index import INDEX
from hybridengine._bench.planner_cases import CASES, Case
from hybridengine._core import UsageError


def main(arguments: list[str]) -> int:
    """Prints a line per case; 0. Throws UsageError."""
    options = parse("planner", INDEX["planner"].summary, INDEX["planner"].flags, arguments)
    results.check_path(options.json_path)
    shared = results.provenance("planner", arguments)
    chosen = [name for name in CASES if not options.only or name.startswith(options.only)]
    if not chosen:
        raise UsageError(f"--only names no case. Cases are {', '.join(CASES)}.")
    peaks = {name: _peak_mb(CASES[name]) for name in chosen}
    rows = []
    silent = options.json_path == "-"
    if not silent:
        _print_header(shared)
    for name in chosen:
        rows.append({**measure(name, CASES[name](), options), "peak_mb": peaks[name]})
        if not silent:
            _print_row(rows[-1])
    if options.json_path is not None:
        results.write(options.json_path, [{**shared, **row} for row in rows])
    return 0


def measure(name: str, case: Case, options: Options) -> dict[str, Any]:
    """Medians over the iterations. With -c from 1 the plan and the schedule are proved first."""
    if options.check:
        _prove(case)
    times: list[tuple[float, ...]] = []
    for iteration in range(-options.warmup, options.iters):
        src, src_s = _timed(case.src)
        dst, dst_s = _timed(case.dst)
        plan, plan_s = _timed(_core.make_plan, src, dst)
        schedule, schedule_s = _timed(_core.make_schedule, plan, _busy_rank(plan))
        if iteration >= 0:
            times.append((src_s + dst_s if case.src_is_bound else dst_s, plan_s, schedule_s))
        facts = {
            "num_tensors": len(case.spec.tensors),
            "moves": plan.num_moves,
            "own": schedule.num_moves,
            "buckets": schedule.num_buckets,
            "received_over_bound": plan.certificate.received_over_bound,
            "sender_max_over_mean": plan.certificate.sender_max_over_mean,
        }
        del src, dst, plan, schedule
    bind, plan_seconds, schedule_seconds = map(statistics.median, zip(*times, strict=True))
    return {
        "case": name,
        **facts,
        "bind_seconds": bind,
        "plan_seconds": plan_seconds,
        "schedule_seconds": schedule_seconds,
    }


def _prove(case: Case) -> None:
    plan = _core.make_plan(case.src(), case.dst())
    plan.check()
    _core.make_schedule(plan, _busy_rank(plan)).check()


def _busy_rank(plan: Any) -> int:
    rows = plan.certificate.ranks
    both = [row["rank"] for row in rows if row["received_bytes"] > 0 and row["sent_bytes"] > 0]
    return int(both[0] if both else rows[0]["rank"])


def _peak_mb(make: Callable[[], Case]) -> float:
    """Of a child process. It starts with what this one holds, so no case may have run here."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            case = make()
            plan = _core.make_plan(case.src(), case.dst())
            _core.make_schedule(plan, _busy_rank(plan))
            code = 0
        finally:
            os._exit(code)
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        raise RuntimeError(f"a process that planned to see its memory ended with {status}.")
    return usage.ru_maxrss / 1024


def _timed(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    began = time.perf_counter()
    made = function(*args)
    return made, time.perf_counter() - began


def _print_header(shared: dict[str, Any]) -> None:
    sys.stdout.write(
        f"# hybridengine {shared['version']} (commit {shared['commit']}), planner\n"
        f"#{'tensors':>11}{'moves':>12}{'own':>12}{'buckets':>12}{'bind':>10}{'plan':>10}"
        f"{'schedule':>10}{'peak':>10}  case\n"
        f"#{'':>47}{'(ms)':>10}{'(ms)':>10}{'(ms)':>10}{'(MB)':>10}\n"
    )


def _print_row(row: dict[str, Any]) -> None:
    counts = "".join(f"{row[key]:12d}" for key in ("num_tensors", "moves", "own", "buckets"))
    keys = ("bind_seconds", "plan_seconds", "schedule_seconds")
    times = "".join(f"{row[key] * 1e3:10.1f}" for key in keys)
    sys.stdout.write(f"{counts}{times}{row['peak_mb']:10.0f}  {row['case']}\n")
    sys.stdout.flush()
