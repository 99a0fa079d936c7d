"""The table of nccl-tests: thirteen columns in two halves, and ours at the right end.

Widths are minimum widths with two blanks between; times and bandwidths lose decimals to fit.
"""

from __future__ import annotations

from typing import Any

from hybridengine._bench.flags import DTYPES
from hybridengine._bench.record import Column

_COMMON = (12, 12, 8, 6, 6)
_HALF = (7, 6, 6, 6)
_RIGHT = (7, 7, 7, 7)
_WHO = 16  # the width of `who` where columns follow
_GAP = "  "
_TYPE_OF = {torch_name: name for name, torch_name in DTYPES.items()}


def header(columns: tuple[Column, ...] = ()) -> list[str]:
    """The halves, the names, the units. Ours: bandwidth over that of memcpy, and time over ours,
    for each half, and who did it; then the `columns` of the benchmark."""
    common = _cells(("size", "count", "type", "redop", "root"), _COMMON)
    half = _cells(("time", "algbw", "busbw", "#wrong"), _HALF)
    width = len(half) + len(_GAP)
    right = _cells(("/memcpy", "/ours", "/memcpy", "/ours"), _RIGHT)
    names = [common, half, half, right, _end("who", [each.name for each in columns], columns)]
    common_units = _cells(("(B)", "(elements)", "", "", ""), _COMMON)
    half_units = _cells(("(us)", "(GB/s)", "(GB/s)", ""), _HALF)
    end_units = _end("", [each.unit for each in columns], columns)
    units = [common_units, half_units, half_units, " " * len(right), end_units]
    return [
        "#" + " " * (len(common) - 1) + "out-of-place".rjust(width) + "in-place".rjust(width),
        "#" + _GAP.join(names)[1:],
        "#" + _GAP.join(units)[1:].rstrip(),
    ]


def row(facts: dict[str, Any], columns: tuple[Column, ...] = ()) -> str:
    """One line from a row of the results."""
    common = _cells(
        (facts["size"], facts["count"], facts["type"], facts["redop"], facts["root"]), _COMMON
    )
    halves = [facts["out_of_place"], facts["in_place"]]
    ratios = [each for half in halves for each in _ratios(half)]
    name = facts["rival"] or facts.get("case") or "hybridengine"
    end = _end(name, [each.text(facts) for each in columns], columns)
    return _GAP.join([common, *map(_half, halves), _cells(ratios, _RIGHT), end])


def _end(name: str, texts: list[str], columns: tuple[Column, ...]) -> str:
    if not columns:
        return name
    return name.ljust(_WHO) + _GAP + _cells(texts, tuple(each.width for each in columns))


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


def _ratios(half: dict[str, Any] | None) -> list[str]:
    keys = ("memcpy_ratio", "rival_ratio")
    values = [None if half is None else half[key] for key in keys]
    return ["-" if value is None else f"{value:.2f}" for value in values]


def _cells(values: Any, widths: tuple[int, ...]) -> str:
    return _GAP.join(str(value).rjust(width) for value, width in zip(values, widths, strict=True))
