"""The help of a benchmark, made of an argparse parser: a line a flag, with its default."""

from __future__ import annotations

import argparse
import shutil
import textwrap

_INDENT = "  "
_MOST_NAMES = 28  # wider ones have a line of their own


def help_text(parser: argparse.ArgumentParser) -> str:
    """Fits the terminal; no name of a flag is cut."""
    width = shutil.get_terminal_size().columns
    actions = parser._actions
    names = {action.dest: _names(action) for action in actions}
    column = 4 + max(len(name) for name in names.values() if len(name) <= _MOST_NAMES)
    needed = "".join(f" {_names(action)}" for action in actions if action.required)
    lines = textwrap.wrap(f"Usage: {parser.prog}{needed} [flags]", width)
    lines += ["", *textwrap.wrap(parser.description or "", width), ""]
    for action in actions:
        words = textwrap.wrap(action.help or "", max(width - column, 20)) or [""]
        name = _INDENT + names[action.dest]
        if len(name) > column - 2:
            lines.append(name)
            name = ""
        lines.append(f"{name.ljust(column)}{words[0]}".rstrip())
        lines += [" " * column + more for more in words[1:]]
    return "\n".join(lines) + "\n"


def _names(action: argparse.Action) -> str:
    """ "-n, --iters N"."""
    names = ", ".join(action.option_strings) or action.dest
    takes_value = action.option_strings and action.nargs != 0
    return f"{names} {action.metavar or action.dest.upper()}" if takes_value else names
