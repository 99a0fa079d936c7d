"""The command `hybridengine bench NAME`: starts ranks, prints the table, writes the rows.

Only the table and its notes go to stdout. Exit codes: 0; 1 where any value was wrong; a wrong call
is a UsageError.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hybridengine._bench import results, table
from hybridengine._bench.flags import AVERAGES, Options, parse
from hybridengine._bench.index import INDEX
from hybridengine._core import UsageError

if TYPE_CHECKING:
    from hybridengine._bench.plot import Picture
    from hybridengine._bench.record import Bench
    from hybridengine._bench.world import World

WRONG = 1

# What is no job of ranks: a module with main(), and a table of its own.
OF_THEIR_OWN = ("scaling", "planner", "loading", "rollout", "compare")


def main(arguments: list[str]) -> int:
    """The exit code. Throws UsageError, TransportError, TimeoutError."""
    try:
        return _main(arguments)
    except SystemExit as ended:  # argparse's way to end after -h
        return int(ended.code or 0)


def _main(arguments: list[str]) -> int:
    name, rest = (arguments[0], arguments[1:]) if arguments else ("-h", [])
    if name in ("-h", "--help"):
        _list()
        return 0
    if name not in INDEX:
        raise UsageError(f"{name!r} is no benchmark. Use {', '.join(INDEX)}.")
    entry = INDEX[name]
    if {"-h", "--help"} & set(rest) and entry.flags:  # before what takes seconds to import
        parse(name, entry.summary, entry.flags, ["-h"])
    if name in OF_THEIR_OWN:
        code: int = importlib.import_module(f"hybridengine._bench.{name}").main(rest)
        return code
    return run_bench(load(name), parse(name, entry.summary, entry.flags, rest), rest)


def load(name: str) -> Bench:
    """The record of a benchmark that runs on ranks."""
    bench: Bench = importlib.import_module(f"hybridengine._bench.{name}").BENCH
    return bench


def run_bench(bench: Bench, options: Options, arguments: list[str]) -> int:
    """Runs one benchmark on its ranks and prints as rows arrive."""
    from hybridengine._bench import harness
    from hybridengine._bench.world import run_on_ranks, under_torchrun

    results.check_path(options.json_path)
    shared = results.provenance(bench.name, arguments)
    bench, picture = _swept(bench, options, shared)
    harness.chosen_rivals(bench, options.rivals)
    needed = bench.ranks(options)
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
    if options.sweep is not None and picture is not None:
        printer.notes(bench.sweeps[options.sweep].conclude(options, rows, picture))
    printer.footer(rows)
    if options.json_path is not None:
        results.write(options.json_path, [{**shared, **row} for row in rows])
    return _code(rows)


def _swept(bench: Bench, options: Options, shared: dict[str, Any]) -> tuple[Bench, Picture | None]:
    """The benchmark over what --sweep names, and its picture."""
    if options.sweep is None:
        if options.picture is not None:
            raise UsageError("--png without --sweep: there is nothing to draw. Add --sweep.")
        return bench, None
    if options.sweep not in bench.sweeps:
        names = ", ".join(bench.sweeps)
        raise UsageError(f"{options.sweep!r} is no sweep of {bench.name}. Use {names}.")
    from hybridengine._bench import plot

    sweep = bench.sweeps[options.sweep]
    picture = options.picture or f"{bench.name}_{options.sweep}.png"
    plot.check(picture)
    sweep.cases(options)  # refuses what makes no sense before ranks start
    swept = replace(bench, cases=sweep.cases, halves=sweep.halves)
    return swept, plot.Picture(picture, plot.origin(shared))


def _measure(world: World, bench: Bench, options: Options) -> list[dict[str, Any]]:
    from hybridengine._bench import harness

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
            for line in table.lines(value, self._bench.columns):
                self._line(line)
        else:
            self._line(f"# {value}")

    def notes(self, lines: list[str]) -> None:
        for line in lines:
            self._line(f"# {line}")

    def footer(self, rows: list[dict[str, Any]]) -> None:
        wrong = sum(row["nwrong"] or 0 for row in rows)
        self._line(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        if self._options.sweep is None:  # over buckets or densities a mean says nothing
            self._average([row for row in rows if row["rival"] is None])
        self._line("#")
        self._line(f"# Collective test concluded: {self._bench.name}")

    def _average(self, rows: list[dict[str, Any]]) -> None:
        """nccl-tests' mean; over what it is, where that is more than one row."""
        halves = [
            half["busbw"]
            for row in rows
            for half in (row["out_of_place"], row["in_place"])
            if half is not None
        ]
        if len(rows) > 1:
            sizes = [row["size"] for row in rows]
            least, most = min(sizes), max(sizes)
            self._line(f"# Averaged over {len(rows)} rows of {least} to {most} B, each half")
        average = sum(halves) / len(halves) if halves else 0.0
        self._line(f"# Avg bus bandwidth    : {average:.4f}")

    def _opening(self, devices: dict[str, Any]) -> None:
        o, shared, ranks = self._options, self._shared, devices["ranks"]
        self._line(f"# hybridengine {shared['version']} (commit {shared['commit']})")
        self._line(f"# Collective test starting: {self._bench.name}")
        self._line(
            f"# nThread 1 nGpus {len(ranks)} {self._sizes()} warmup iters: {o.warmup} iters: "
            f"{o.iters} agg iters: {self._repeats()} validation: {o.check} graph: 0 unalign: 0"
        )
        self._line(f"# Time is the median over iterations, {AVERAGES[o.average]}")
        self._line("#")
        self._line("# Using devices")
        transport = devices["transport"] if self._bench.travels else "no transport"
        for each in ranks:
            self._line(
                f"#  Rank {each['rank']:2d} Group  0 Pid {each['pid']:6d} on {each['host']} "
                f"device  0 [-] host memory, {transport}"
            )
        self.notes(_shared_cores(ranks))
        self._line("#")
        for line in table.header(bool(self._bench.always or o.rivals)):
            self._line(line)

    def _sizes(self) -> str:
        """Smallest, largest and step as asked for, or as a sweep of something else or a model has
        them."""
        o = self._options
        if o.sweep is not None or "sizes" not in self._bench.flags:
            sizes = [case.size_bytes for case in self._bench.cases(o)]
            return f"minBytes {min(sizes)} maxBytes {max(sizes)} step: 0(bytes)"
        step = f"{o.step_factor}(factor)" if o.step_factor > 1 else f"{o.step_bytes}(bytes)"
        return f"minBytes {o.min_bytes} maxBytes {o.end_bytes} step: {step}"

    def _repeats(self) -> str:
        if self._options.agg_iters is not None:
            return str(self._options.agg_iters)
        return "auto" if self._bench.repeats_short else "1"

    def _line(self, text: str) -> None:
        if not self._silent:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


def _shared_cores(ranks: list[dict[str, Any]]) -> list[str]:
    """A line for each host on which there are more ranks than cores."""
    found = []
    for host in dict.fromkeys(each["host"] for each in ranks):
        mine = [each for each in ranks if each["host"] == host]
        cores = mine[0]["cores"]
        if len(mine) > cores:
            found.append(
                f"{len(mine)} ranks share the {cores} cores of {host}: with a core each, times "
                "would be shorter"
            )
    return found


def _list() -> None:
    lines = ["Usage: hybridengine bench NAME [flags]   (flags: hybridengine bench NAME -h)", ""]
    lines += [f"  {name:<17} {entry.summary}" for name, entry in INDEX.items()]
    sys.stdout.write("\n".join(lines) + "\n")
