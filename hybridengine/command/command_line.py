"""command_line: typer's commands with help that fits 80 columns, and the words for a wrong call.

A flag shows no type, its name says it; the name of an option is never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Of a flag in its help: nothing.
NO_VALUE = ""

# What typer raises on a command line that it cannot read.
CommandLineError: Any = typer.BadParameter.__base__


class Command(TyperCommand):
    """A command whose --help shows no type."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))


class Group(TyperGroup):
    """The same for a command of commands."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))


def _without_type(option: Any) -> Any:
    if option is not None:
        option.metavar = NO_VALUE
    return option


def wrong_call(error: Any, arguments: Sequence[str]) -> str:
    """What is wrong with `arguments`, about which typer raised `error`, and what to write."""
    command = "hybridengine" if error.ctx is None else error.ctx.command_path
    option = getattr(error, "option_name", None)
    if option is not None and command.split()[-1].startswith("train"):
        from hybridengine.rlhf.cli import not_an_option

        return not_an_option(option, arguments)
    return f"{error.format_message().rstrip('.')}. See {command} --help."
