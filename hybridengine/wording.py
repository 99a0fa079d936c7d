"""wording: how values are named in texts, the same everywhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_MAX_LISTED = 8
_UNITS = ("kB", "MB", "GB", "TB", "PB")


def kind_of(value: object) -> str:
    """'an int', 'a list', 'None': what a value is, for 'src is ...'."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def counted(count: int, noun: str) -> str:
    """'1 rank', '2,000 ranks'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], at_most: int = _MAX_LISTED) -> str:
    """'a', 'b' and 12 more. Nothing for no names."""
    shown = ", ".join(repr(name) for name in names[:at_most])
    more = len(names) - at_most
    return f"{shown} and {more} more" if more > 0 else shown


def human_bytes(count: int) -> str:
    """Three digits and a decimal unit: 3.81 GB."""
    if count < 1000:
        return f"{count} B"
    power = 1
    while count / 1000**power >= 999.5 and power < len(_UNITS):
        power += 1
    value, unit = count / 1000**power, _UNITS[power - 1]
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The most similar known name, or words for having to choose where none is similar."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"the nearest, {matches[0]!r}, or another of these" if matches else "one of these"
