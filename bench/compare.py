"""Two files of rows side by side: what became faster, what slower, and what is missing.

What all rows of both files have in common is said once, above the table; the rest names a row.
Ours come first, memcpy and rivals, which tell how alike the two machines were, apart from them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import textwrap
from typing import Any

from hybridengine._bench import results
from hybridengine._bench.flags import Parser
from hybridengine._bench.index import INDEX

# What makes two rows the same measurement, and the short name of it where it has one.
_KEYS = {
    **dict.fromkeys(("bench", "case", "job", "kind", "size", "type", "redop", "root"), ""),
    **{"src": "", "dst": "", "model": "", "num_tensors": "tensors", "num_ranks": "ranks"},
    **{"ranks": "", "rank_bytes": "of a rank", "transport": "", "threshold": ""},
    "granularity": "",
}
_HALVES = {"out_of_place": "out-of-place", "in_place": "in-place"}
_WIDTH = 120
_NAME_AT = 40  # columns before the name of a row

Key = tuple[tuple[str, str], ...]


def main(arguments: list[str]) -> int:
    """Prints the table of `before` and `after`; always 0."""
    parser = Parser(
        prog="hybridengine bench compare",
        description=INDEX["compare"].summary,
        allow_abbrev=False,
    )
    parser.add_argument("before", help="a file that --json wrote")
    parser.add_argument("after", help="the one to compare with it")
    files: argparse.Namespace = parser.parse_args(arguments)
    lines = compare(results.read(files.before), results.read(files.after))
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def compare(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """Lines: every time of both files, and after over before; rows without a match, and a summary
    of ours, at the end."""
    old, new = _times(before), _times(after)
    common = set.intersection(*(set(key) for key in (*old, *new))) if old or new else set()
    common -= {each for each in common if each[0] in ("rival", "time")}
    lines = [f"# before: commit {_commits(before)}", f"# after:  commit {_commits(after)}"]
    if common:
        named = [each for each in next(iter((*old, *new))) if each in common]
        lines += _wrapped("# all: ", ", ".join(_text(named)))
    lines.append(f"#{'before':>13} {'after':>14} {'ratio':>7}  what")
    both = [key for key in old if key in new]
    for theirs in (False, True):
        mine = [key for key in both if _is_rival(key) == theirs]
        if theirs and mine:
            lines.append("# memcpy and rivals")
        lines += [line for key in mine for line in _line(old[key], new[key], key, common)]
    for where, times, others in (("before", old, new), ("after", new, old)):
        for key in times:
            if key not in others:
                lines += _wrapped(f"# only {where}: ", _name(key, common))
    return lines + _summary([new[key] / old[key] for key in both if not _is_rival(key)])


def _line(before: float, after: float, key: Key, common: set[tuple[str, str]]) -> list[str]:
    first, *more = textwrap.wrap(_name(key, common), _WIDTH - _NAME_AT) or [""]
    rest = ["#" + " " * (_NAME_AT - 1) + part for part in more]
    return [f"{before:14.6g} {after:14.6g} {after / before:7.3f}  {first}", *rest]


def _summary(ratios: list[float]) -> list[str]:
    """Over the times of ours. 5 % are within what two runs of one commit differ by."""
    if not ratios:
        return ["# ours: nothing to compare"]
    mean = statistics.geometric_mean(ratios)
    faster, slower = sum(each < 0.95 for each in ratios), sum(each > 1.05 for each in ratios)
    return [
        f"# ours: {len(ratios)} times, after is {mean:.3f} of before (geometric mean), "
        f"{min(ratios):.3f} to {max(ratios):.3f}",
        f"# by more than 5 %: {faster} faster, {slower} slower",
    ]


def _times(rows: list[dict[str, Any]]) -> dict[Key, float]:
    """Every time of the rows by what it measures: pairs of a name and a value."""
    found: dict[Key, float] = {}
    for row in rows:
        facts = [(name, str(row[name])) for name in _KEYS if row.get(name) is not None]
        if row.get("rival") is not None:
            facts.insert(0, ("rival", str(row["rival"])))
        for half, word in _HALVES.items():
            if row.get(half) is not None:
                found[(*facts, ("time", word))] = row[half]["time_us"]
        if isinstance(row.get("time_us"), float) and not any(half in row for half in _HALVES):
            found[(*facts, ("time", "time_us"))] = row["time_us"]
        for name, value in row.items():
            if name.endswith("_seconds"):
                found[(*facts, ("time", name))] = value
    return found


def _is_rival(key: Key) -> bool:
    return key[0][0] == "rival"


def _name(key: Key, common: set[tuple[str, str]]) -> str:
    return " ".join(_text([each for each in key if each not in common]))


def _text(facts: list[tuple[str, str]]) -> list[str]:
    """A rival, a case and which time by their values alone."""
    alone = ("rival", "case", "time", "bench", "job", "kind")
    return [v if name in alone else f"{_KEYS.get(name) or name}={v}" for name, v in facts]


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(head + text, _WIDTH, subsequent_indent="#   ")


def _commits(rows: list[dict[str, Any]]) -> str:
    return ", ".join(sorted({str(row.get("commit")) for row in rows})) or "unknown"
