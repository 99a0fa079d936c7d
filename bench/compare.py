"""Two files of rows side by side: what became faster, what slower, and what is missing."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from hybridengine._bench import results
from hybridengine._bench.flags import Parser

SUMMARY = "two JSON files of rows side by side"

# What makes two rows the same measurement.
_KEYS = (
    *("bench", "case", "size", "type", "redop", "root", "src", "dst", "model", "num_tensors"),
    *("num_ranks", "transport", "rival", "threshold", "granularity"),
)
_HALVES = ("out_of_place", "in_place")


def main(arguments: list[str]) -> int:
    """Prints the table of `before` and `after`; always 0."""
    parser = Parser(prog="hybridengine bench compare", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("before")
    parser.add_argument("after")
    files: argparse.Namespace = parser.parse_args(arguments)
    lines = compare(results.read(files.before), results.read(files.after))
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def compare(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """Lines: every time of both files, and after over before; rows without a match at the end."""
    old, new = _times(before), _times(after)
    lines = [
        f"# before: commit {_commits(before)}",
        f"# after:  commit {_commits(after)}",
        f"#{'before':>13} {'after':>14} {'ratio':>7}  what",
    ]
    for key, value in old.items():
        if key in new:
            lines.append(f"{value:14.6g} {new[key]:14.6g} {new[key] / value:7.3f}  {key}")
    lines += [f"# only before: {key}" for key in old if key not in new]
    lines += [f"# only after: {key}" for key in new if key not in old]
    return lines


def _times(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Every time of the rows by what it measures."""
    found: dict[str, float] = {}
    for row in rows:
        key = " ".join(f"{name}={row[name]}" for name in _KEYS if row.get(name) is not None)
        for half in _HALVES:
            if row.get(half) is not None:
                found[f"{key} {half} time_us"] = row[half]["time_us"]
        for name, value in row.items():
            if name.endswith("_seconds"):
                found[f"{key} {name}"] = value
    return found


def _commits(rows: list[dict[str, Any]]) -> str:
    return ", ".join(sorted({str(row.get("commit")) for row in rows})) or "unknown"
