"""screen: the console that a command of the trainer writes to: its width, colours and live lines.

On a terminal the width is the terminal's. Elsewhere it is that of COLUMNS, or of the terminal that
stderr or stdin is, or PLAIN_WIDTH. Colours and lines that change in place are for terminals alone,
no colours with NO_COLOR, neither with TERM=dumb.
"""

from __future__ import annotations

import os
import sys
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

PLAIN_WIDTH = 120  # where nothing says how wide lines may be
_DUMB = ("", "dumb", "unknown")


def open_screen() -> Console:
    """A console on stdout that prints text as it is: no markup, no highlights, no emoji codes."""
    stdout = Console().file
    live = is_live(stdout)
    return Console(
        force_terminal=live,  # whatever FORCE_COLOR says
        color_system="auto" if wants_colors(stdout) else None,
        width=None if live else _plain_width(),
        markup=False,
        highlight=False,
        emoji=False,
    )


def busy(screen: Console, text: str) -> Live:
    """A context in which a terminal shows `text` behind a spinner, and nothing of it afterwards.
    What others write stands above it, but what goes to a file goes there."""
    return Live(
        Spinner("dots", text),
        console=screen,
        transient=True,
        redirect_stderr=sys.stderr.isatty(),
    )


def is_live(stream: IO[str]) -> bool:
    """Whether it is a terminal on which a line can change in place."""
    return stream.isatty() and os.environ.get("TERM", "") not in _DUMB


def wants_colors(stream: IO[str]) -> bool:
    return is_live(stream) and not os.environ.get("NO_COLOR")


def _plain_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    for stream in (sys.stderr, sys.stdin):
        try:
            return os.get_terminal_size(stream.fileno()).columns or PLAIN_WIDTH
        except (AttributeError, OSError, ValueError):
            continue  # closed, or no terminal
    return PLAIN_WIDTH
