"""The command `hybridengine bench NAME`: starts ranks, prints the table, writes the rows.

Only the table and its notes go to stdout. Exit codes: 0; 1 where any value was wrong; a wrong call
is a UsageError.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

from hybridengine._bench import (
    all_gather,
    all_reduce,
    compare,
    harness,
    masked_all_reduce,
    pack,
    planner,
    plot,
    reduce_scatter,
    reshard,
    results,
    rollout,
    scaling,
    send_recv,
    table,
    two_step,
)
from hybridengine._bench.flags import AVERAGES, Options, parse
from hybridengine._bench.record import Bench
from hybridengine._bench.world import World, run_on_ranks, under_torchrun
from hybridengine._core import UsageError

WRONG = 1

BENCHES: dict[str, Bench] = {
    bench.name: bench
    for bench in (
        reshard.BENCH,
        send_recv.BENCH,
        all_reduce.BENCH,
        reduce_scatter.BENCH,
        all_gather.BENCH,
        masked_all_reduce.BENCH,
        two_step.BENCH,
        pack.BENCH,
    )
}
# What is no job of ranks: own flags, own table.
_COMMANDS: dict[str, Any] = {
    "scaling": scaling,
    "planner": planner,
    "rollout": rollout,
    "compare": compare,
}


def main(arguments: list[str]) -> int:
    """The exit code. Throws UsageError, TransportError, TimeoutError; SystemExit after -h."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("-h", [])
    if name in ("-h", "--help"):
        _list()
        return 0
    if name in _COMMANDS:
        code: int = _COMMANDS[name].main(rest)
        return code
    if name not in BENCHES:
        names = ", ".join([*BENCHES, *_COMMANDS])
        raise UsageError(f"{name!r} is no benchmark. Use {names}.")
    bench = BENCHES[name]
    return run_bench(bench, parse(name, bench.summary, bench.flags, rest), rest)


def run_bench(bench: Bench, options: Options, arguments: list[str]) -> int:
    """Runs one benchmark on its ranks and prints as rows arrive."""
    results.check_path(options.json_path)
    bench, picture = _swept(bench, options)
    harness.chosen_rivals(bench, options.rivals)
    needed = bench.ranks(options)
    shared = results.provenance(bench.name, arguments)
    printer = _Printer(bench, options, shared)
    rows = run_on_ranks(
        needed,
        options.ranks,
        options.transport,
        options.timeout,
        printer.take,
        _measure,
        bench,
        options,
    )
    if under_torchrun() and os.environ["RANK"] != "0":
        return _code(rows)
    if options.sweep is not None:
        printer.notes(bench.sweeps[options.sweep].conclude(options, rows, picture))
    printer.footer(rows)
    if options.json_path is not None:
        results.write(options.json_path, [{**shared, **row} for row in rows])
    return _code(rows)


def _swept(bench: Bench, options: Options) -> tuple[Bench, str]:
    """The benchmark over what --sweep names, and the file for its picture."""
    if options.sweep is None:
        if options.picture is not None:
            raise UsageError("--png without --sweep: there is nothing to draw. Add --sweep.")
        return bench, ""
    if options.sweep not in bench.sweeps:
        names = ", ".join(bench.sweeps)
        raise UsageError(f"{options.sweep!r} is no sweep of {bench.name}. Use {names}.")
    sweep = bench.sweeps[options.sweep]
    picture = options.picture or f"{bench.name}_{options.sweep}.png"
    plot.check(picture)
    sweep.cases(options)  # refuses what makes no sense before ranks start
    return replace(bench, cases=sweep.cases, halves=sweep.halves), picture


def _measure(world: World, bench: Bench, options: Options) -> list[dict[str, Any]]:
    return harness.measure(world, bench, options)


def _code(rows: list[dict[str, Any]]) -> int:
    return WRONG if any(row["nwrong"] for row in rows) else 0


class _Printer:
    """Writes the table; silent where JSON has stdout."""

    def __init__(self, bench: Bench, options: Options, shared: dict[str, Any]) -> None:
        self._bench, self._options = bench, options
        self._silent = options.json_path == "-"
        self._shared = shared

    def take(self, event: Any) -> None:
        kind, value = event
        if kind == "devices":
            self._opening(value)
        elif kind == "row":
            self._line(table.row(value, self._bench.columns))
        else:
            self._line(f"# {value}")

    def notes(self, lines: list[str]) -> None:
        for line in lines:
            self._line(f"# {line}")

    def footer(self, rows: list[dict[str, Any]]) -> None:
        wrong = sum(row["nwrong"] or 0 for row in rows)
        ours = [
            half["busbw"]
            for row in rows
            for half in (row["out_of_place"], row["in_place"])
            if row["rival"] is None and half is not None
        ]
        average = sum(ours) / len(ours) if ours else 0.0
        self._line(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        self._line(f"# Avg bus bandwidth    : {average:.4f}")
        self._line("#")
        self._line(f"# Collective test concluded: {self._bench.name}")

    def _opening(self, devices: dict[str, Any]) -> None:
        o, shared = self._options, self._shared
        self._line(f"# hybridengine {shared['version']} (commit {shared['commit']})")
        self._line(f"# Collective test starting: {self._bench.name}")
        self._line(
            f"# nThread 1 nGpus {len(devices['ranks'])} minBytes {o.min_bytes} maxBytes "
            f"{o.end_bytes} step: {o.step_factor if o.step_factor > 1 else o.step_bytes}"
            f"({'factor' if o.step_factor > 1 else 'bytes'}) warmup iters: {o.warmup} iters: "
            f"{o.iters} agg iters: {self._repeats()} validation: {o.check} graph: 0 unalign: 0"
        )
        self._line(f"# Time is the median over iterations, {AVERAGES[o.average]}")
        self._line("#")
        self._line("# Using devices")
        for each in devices["ranks"]:
            self._line(
                f"#  Rank {each['rank']:2d} Group  0 Pid {each['pid']:6d} on {each['host']} "
                f"device  0 [-] host memory, {devices['transport']}"
            )
        self._line("#")
        for line in table.header(self._bench.columns):
            self._line(line)

    def _repeats(self) -> str:
        if self._options.agg_iters is not None:
            return str(self._options.agg_iters)
        return "auto" if self._bench.repeats_short else "1"

    def _line(self, text: str) -> None:
        if not self._silent:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


def _list() -> None:
    lines = ["Usage: hybridengine bench NAME [flags]   (flags: hybridengine bench NAME -h)", ""]
    lines += [f"  {bench.name:<17} {bench.summary}" for bench in BENCHES.values()]
    lines += [f"  {name:<17} {module.SUMMARY}" for name, module in _COMMANDS.items()]
    sys.stdout.write("\n".join(lines) + "\n")
