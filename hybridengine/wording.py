"""wording: how values are named in texts, the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence

_MAX_LISTED = 8


def kind_of(value: object) -> str:
    """'an int', 'a list', 'None': what a value is, for 'src is ...'."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def counted(count: int, noun: str) -> str:
    """'1 rank', '2 ranks'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(names: Sequence[str], at_most: int = _MAX_LISTED) -> str:
    """'a', 'b' and 12 more. Nothing for no names."""
    shown = ", ".join(repr(name) for name in names[:at_most])
    more = len(names) - at_most
    return f"{shown} and {more} more" if more > 0 else shown
