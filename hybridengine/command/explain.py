"""explain: a plan, and the outcome of a reshard, as numbers for JSON and as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybridengine.command.job import RankOutcome, ReshardJob
from hybridengine.layouts.grammar import format_ranks
from hybridengine.layouts.layout import Layout
from hybridengine.layouts.planning import Plan
from hybridengine.wording import human_bytes

Facts = dict[str, Any]

# A matrix of pairs fits 80 columns up to this many receivers; beyond, each sender has a line.
_MAX_MATRIX = 7
# What does not fit is counted, and is in the JSON.
_MAX_ROWS = 40
_MAX_SIZES = 4

_STAGING_BUCKETS = 3


def plan_facts(model: str, src: Layout, dst: Layout, plan: Plan, bucket_bytes: int) -> Facts:
    """Everything `hybridengine plan` says, JSON-ready."""
    certificate, pairs = plan.certificate, plan.pairs(bucket_bytes)
    return {
        "model": model,
        "src": src.text,
        "dst": dst.text,
        "bucket_bytes": bucket_bytes,
        "buckets": sum(buckets for *_, buckets in pairs),
        "moved_bytes": certificate.moved_bytes,
        "received_over_bound": certificate.received_over_bound,
        "sender_max_over_mean": certificate.sender_max_over_mean,
        "ranks": [_rank_facts(row, src, dst, bucket_bytes) for row in certificate.ranks],
        "pairs": [
            {"src": sender, "dst": receiver, "num_bytes": size, "buckets": buckets}
            for sender, receiver, size, buckets in pairs
        ],
    }


def _rank_facts(row: Facts, src: Layout, dst: Layout, bucket_bytes: int) -> Facts:
    """A row of the certificate and the memory behind it: at most three buckets of staging."""
    rank = row["rank"]
    src_bytes = src.num_bytes(rank) if rank in src.ranks else 0
    dst_bytes = dst.num_bytes(rank) if rank in dst.ranks else 0
    staging_bytes = _STAGING_BUCKETS * min(bucket_bytes, row["received_bytes"])
    return {
        **row,
        "src_bytes": src_bytes,
        "dst_bytes": dst_bytes,
        "peak_bytes": src_bytes + dst_bytes + staging_bytes,
    }


def render_plan(facts: Facts, console: Console) -> None:
    """Prints what plan_facts() returned."""
    _print(console, f"{facts['model']}: {facts['src']} -> {facts['dst']}")
    columns = ("rank", "receives", "bound", "sends", "holds", "source", "destination", "peak")
    keys = ("received", "bound", "sent", "held", "src", "dst", "peak")
    console.print(_rank_table("Bytes per rank", columns, facts["ranks"], keys))
    if facts["pairs"]:
        console.print(_pair_table(facts["pairs"]))
    received, bound = _sums(facts["ranks"])
    _print(console, _received_line("receives", received, bound, facts["received_over_bound"]))
    _print(
        console,
        f"{facts['buckets']} buckets of at most {bucket_text(facts['bucket_bytes'])}; "
        f"busiest sender {facts['sender_max_over_mean']:.2f} of the mean; peak is source, "
        "destination and at most three buckets",
    )


def reshard_facts(job: ReshardJob, outcomes: Sequence[RankOutcome], buckets: int) -> Facts:
    """Everything `hybridengine reshard --json` says, JSON-ready."""
    reports = [outcome.report for outcome in outcomes]
    counts = [o.mismatched_elements for o in outcomes if o.mismatched_elements is not None]
    return {
        "model": job.model,
        "src": job.src,
        "dst": job.dst,
        "transport": reports[0].transport,
        "received_over_bound": max(report.received_over_bound for report in reports),
        "mismatched_elements": sum(counts) if job.verify else None,
        "seconds": max(report.seconds for report in reports),
        "buckets": buckets,
        "ranks": [
            {
                "rank": report.rank,
                "received_bytes": report.received_bytes,
                "bound_bytes": report.bound_bytes,
                "sent_bytes": report.sent_bytes,
                "staging_bytes": report.staging_bytes,
            }
            for report in reports
        ],
    }


def render_reshard(facts: Facts, held_bytes: dict[int, int], console: Console) -> None:
    """Prints what reshard_facts() returned, and what each rank held already."""
    _print(console, f"{facts['model']}: {facts['src']} -> {facts['dst']}")
    rows = [{**row, "held_bytes": held_bytes.get(row["rank"], 0)} for row in facts["ranks"]]
    columns = ("rank", "received", "bound", "sent", "held", "staging")
    console.print(_rank_table("", columns, rows, columns[1:]))
    received, bound = _sums(rows)
    seconds = facts["seconds"]
    rate = f", {received / seconds / 1e9:.2f} GB/s" if seconds > 0 else ""
    _print(
        console, f"{facts['buckets']} buckets over {facts['transport']} in {seconds:.3f} s{rate}"
    )
    _print(console, _received_line("received", received, bound, facts["received_over_bound"]))
    console.print(_verdict(facts["mismatched_elements"]))


def bucket_text(count: int) -> str:
    """Buckets are powers of two more often than not: 32 MiB."""
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size and count % size == 0:
            return f"{count // size} {unit}"
    return f"{count} B"


def _verdict(mismatched: int | None) -> Text:
    if mismatched is None:
        return Text("verified: no (--verify compares every element)")
    if mismatched == 0:
        return Text("verified: yes, every element equals the checkpoint's", style="green")
    return Text(f"verified: {mismatched} elements DIFFER from the checkpoint's", style="red")


def _received_line(verb: str, received: int, bound: int, ratio: float) -> str:
    return f"{verb} {human_bytes(received)} of {human_bytes(bound)} bound (ratio {ratio:.2f})"


def _sums(rows: Iterable[Facts]) -> tuple[int, int]:
    rows = list(rows)
    return sum(row["received_bytes"] for row in rows), sum(row["bound_bytes"] for row in rows)


def _rank_table(
    title: str, columns: Sequence[str], rows: Sequence[Facts], keys: Sequence[str]
) -> Table:
    """A row per rank; neighbours with the same numbers share one."""
    table = _table(title, columns)
    groups: list[tuple[list[int], list[int]]] = []
    for row in rows:
        numbers = [row[f"{key}_bytes"] for key in keys]
        if groups and groups[-1][1] == numbers and groups[-1][0][-1] + 1 == row["rank"]:
            groups[-1][0].append(row["rank"])
        else:
            groups.append(([row["rank"]], numbers))
    for ranks, numbers in groups[:_MAX_ROWS]:
        table.add_row(format_ranks(ranks), *map(human_bytes, numbers))
    _count_rest(table, len(groups))
    return table


def _pair_table(pairs: Sequence[Facts]) -> Table:
    sent: dict[int, dict[int, int]] = {}
    for pair in pairs:
        sent.setdefault(pair["src"], {})[pair["dst"]] = pair["num_bytes"]
    receivers = sorted({pair["dst"] for pair in pairs})
    if len(receivers) <= _MAX_MATRIX:
        table = _table("Bytes per pair", ("from \\ to", *map(str, receivers)))
        for sender, row in list(sent.items())[:_MAX_ROWS]:
            cells = (human_bytes(row[rank]) if rank in row else "-" for rank in receivers)
            table.add_row(str(sender), *cells)
    else:
        table = _new_table("Bytes per pair")
        table.add_column("from", justify="right")
        table.add_column("to")
        for sender, row in list(sent.items())[:_MAX_ROWS]:
            table.add_row(str(sender), _peers(row))
    _count_rest(table, len(sent))
    return table


def _peers(row: dict[int, int]) -> str:
    """'1.20 GB to 0-3; 12.0 MB to 7': the largest first."""
    by_size: dict[int, list[int]] = {}
    for rank, size in row.items():
        by_size.setdefault(size, []).append(rank)
    sizes = sorted(by_size, reverse=True)
    shown = [f"{human_bytes(size)} to {format_ranks(by_size[size])}" for size in sizes[:_MAX_SIZES]]
    if len(sizes) > _MAX_SIZES:
        left = [rank for size in sizes[_MAX_SIZES:] for rank in by_size[size]]
        shown.append(f"less to {len(left)} more")
    return "; ".join(shown)


def _count_rest(table: Table, rows: int) -> None:
    if rows > _MAX_ROWS:
        table.caption = f"and {rows - _MAX_ROWS} more rows, which --json lists"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = _new_table(title)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _new_table(title: str) -> Table:
    return Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )


def _print(console: Console, line: str) -> None:
    """Whole lines as they are: no markup, no colours, no line breaks."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
