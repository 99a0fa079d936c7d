"""farewell: what a command says behind its error, however it ends: how to go on.

An error, Ctrl-C and a signal take different ways out of a command, and not all of them can carry
words; all end in cli.main, which says what was left here.
"""

from __future__ import annotations

import contextlib
import sys

_lines: list[str] = []


def leave(line: str) -> None:
    """`line` is said when the process ends its command."""
    _lines.append(line)


def say() -> None:
    """Writes to stderr what was left, once."""
    with contextlib.suppress(OSError):  # a stderr that takes nothing
        while _lines:
            sys.stderr.write(_lines.pop(0) + "\n")
