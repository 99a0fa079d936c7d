"""The table of nccl-tests: thirteen columns in two halves, and beneath a row lines with # for what
is no row of nccl-tests: its rate over memcpy's, and rivals. No line has more than 120 columns.

Widths are minimum widths with two blanks between; times and bandwidths lose decimals to fit.
"""

from __future__ import annotations

from typing import Any

from hybridengine._bench.flags import DTYPES
from hybridengine._bench.record import Column

_COMMON = (12, 12, 8, 6, 6)
_HALF = (7, 6, 6, 6)
_GAP = "  "
_NAME = 20  # of who is meant, beneath a row
_TYPE_OF = {torch_name: name for name, torch_name in DTYPES.items()}


def header(rivals: bool = False) -> list[str]:
    """What the lines mean, then the halves, the names, the units."""
    common = _cells(("size", "count", "type", "redop", "root"), _COMMON)
    half = _cells(("time", "algbw", "busbw", "#wrong"), _HALF)
    common_units = _cells(("(B)", "(elements)", "", "", ""), _COMMON)
    half_units = _cells(("(us)", "(GB/s)", "(GB/s)", ""), _HALF)
    rules = [f" {name} ".center(len(half) - 2, "-") for name in ("out-of-place", "in-place")]
    lines = ["# Beneath a row, out-of-place / in-place: its rate over that of memcpy"]
    if rivals:
        lines.append(
            "# Then rivals: their time over ours, out-of-place / in-place, and their numbers"
        )
    return [
        *lines,
        "#" + (_GAP + "  ").join([" " * (len(common) - 1), *rules]),
        "#" + _GAP.join([common, half, half])[1:],
        "#" + _GAP.join([common_units, half_units, half_units])[1:].rstrip(),
    ]


def lines(facts: dict[str, Any], columns: tuple[Column, ...] = ()) -> list[str]:
    """Those of a row of the results: none of memcpy's, which our row has its rate over."""
    if facts["rival"] == "memcpy":
        return []
    if facts["rival"] is not None:
        return [_rival(facts)]
    return [row(facts), *_beneath(facts, columns)]


def row(facts: dict[str, Any]) -> str:
    common = _cells(
        (facts["size"], facts["count"], facts["type"], facts["redop"], facts["root"]), _COMMON
    )
    return _GAP.join([common, _half(facts["out_of_place"]), _half(facts["in_place"])])


def _beneath(facts: dict[str, Any], columns: tuple[Column, ...]) -> list[str]:
    """A line with the case, the rate over memcpy's and the facts of `columns`; none without any."""
    parts = []
    if any(half and half["memcpy_ratio"] is not None for half in _halves(facts)):
        parts.append(f"{_both(facts, 'memcpy_ratio')} of memcpy")
    parts += [f"{each.name} {each.text(facts)} {each.unit}" for each in columns]
    name = facts.get("case") or ""
    if not name and not parts:
        return []
    return [f"#   {name.ljust(_NAME)} {', '.join(parts)}".rstrip()]


def _rival(facts: dict[str, Any]) -> str:
    """Where a row has its columns, behind a # and the rival's name."""
    who = f"#   {facts['rival'].ljust(_NAME)} {_both(facts, 'rival_ratio')} of our time"
    width = len(_cells(("",) * len(_COMMON), _COMMON))
    return _GAP.join([who.ljust(width), *map(_half, _halves(facts))])


def _halves(facts: dict[str, Any]) -> list[dict[str, Any] | None]:
    return [facts["out_of_place"], facts["in_place"]]


def _both(facts: dict[str, Any], key: str) -> str:
    """ "0.93 / 0.91", with - for a half that was not measured."""
    values = [None if half is None else half[key] for half in _halves(facts)]
    return " / ".join("-" if value is None else f"{value:.2f}" for value in values)


def type_name(dtype: str) -> str:
    """nccl-tests' name of an element type, or torch's where it has none."""
    return _TYPE_OF.get(dtype, dtype)


def time_text(microseconds: float) -> str:
    decimals = 0 if microseconds >= 10_000 else 1 if microseconds >= 100 else 2
    return f"{microseconds:.{decimals}f}"


def bandwidth_text(gigabytes: float, width: int = _HALF[1]) -> str:
    return next(
        (text for digits in (2, 1) if len(text := f"{gigabytes:.{digits}f}") <= width),
        f"{gigabytes:.0f}",
    )


def _half(half: dict[str, Any] | None) -> str:
    if half is None:
        return _cells(("N/A",) * 4, _HALF)
    wrong = "N/A" if half["nwrong"] is None else half["nwrong"]
    bandwidths = bandwidth_text(half["algbw"]), bandwidth_text(half["busbw"])
    return _cells((time_text(half["time_us"]), *bandwidths, wrong), _HALF)


def _cells(values: Any, widths: tuple[int, ...]) -> str:
    return _GAP.join(str(value).rjust(width) for value, width in zip(values, widths, strict=True))
