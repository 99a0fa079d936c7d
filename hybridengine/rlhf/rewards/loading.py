"""loading: a reward function out of a user's file, given as path.py:name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.plugins import load_plugin
from hybridengine.rlhf.rewards.registry import Returned

KEY = "reward.function"
ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


def load_function(reference: str) -> Callable[..., Returned]:
    """The function `name` of the file, which is imported.

    It may be async. Throws UsageError as load_plugin() does, and where the function cannot be
    called with data_source, solution_str, ground_truth and extra_info, or yields.
    """
    function = load_plugin(reference, KEY)
    path, _, name = reference.rpartition(":")
    _check_signature(function, name, Path(path))
    _refuse_generator(function, name, Path(path))
    loaded: Callable[..., Returned] = function
    return loaded


def _check_signature(function: Callable[..., Any], name: str, path: Path) -> None:
    """Options without a default are not missed here: the config may set them."""
    try:
        signature = inspect.signature(function)
    except ValueError as error:  # of some functions written in C
        raise UsageError(
            f"reward.function: {name} of {path} does not say which arguments it takes. Call it "
            f"from a function of your own."
        ) from error
    required = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in ARGUMENTS
    ]
    try:
        signature.bind(**dict.fromkeys([*ARGUMENTS, *required]))
    except TypeError as error:
        raise UsageError(
            f"reward.function: {name}{signature} of {path} cannot be called with "
            f"{', '.join(ARGUMENTS)}: {error}. Give it these arguments; others need defaults."
        ) from error


def _refuse_generator(function: Callable[..., Any], name: str, path: Path) -> None:
    for called in (function, getattr(function, "__call__", None)):  # noqa: B004
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise UsageError(
                f"reward.function: {name} of {path} is a generator: calling it gives no number. "
                f"Write return in place of yield."
            )
