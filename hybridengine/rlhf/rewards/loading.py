"""loading: a reward function out of a user's file, given as path.py:name."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.registry import nearest
from hybridengine.rlhf.rewards.registry import Returned

ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


def function_name(reference: str) -> str:
    """The name in `path.py:name`. Throws UsageError for text of another form."""
    path, _, name = reference.rpartition(":")
    if not path or not name.isidentifier():
        raise UsageError(
            f"reward.function: {reference!r} is not of the form path.py:name. "
            f"Name a file and a function in it, e.g. rewards.py:score."
        )
    return name


def load_function(reference: str) -> Callable[..., Returned]:
    """The function `name` of the file, which is imported.

    It may be async. Throws UsageError where the file is missing or raises, has no such function, or
    has one that cannot be called with data_source, solution_str, ground_truth and extra_info, or
    that yields.
    """
    name = function_name(reference)
    path = Path(reference.rpartition(":")[0])
    if not path.is_file():
        raise UsageError(f"reward.function: there is no file {str(path)!r}. Mend the path.")
    module = _import(path)
    if not hasattr(module, name):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        has = f"it has {', '.join(functions)}" if functions else "it has no function"
        mend = f"Use {nearest(name, functions)}" if functions else f"Define {name} there"
        raise UsageError(f"reward.function: {path} has no {name!r}: {has}. {mend}.")
    function = getattr(module, name)
    if not callable(function):
        raise UsageError(
            f"reward.function: {name!r} of {path} is a {type(function).__name__}, not a function. "
            f"Name a function."
        )
    _check_signature(function, name, path)
    _refuse_generator(function, name, path)
    loaded: Callable[..., Returned] = function
    return loaded


def _import(path: Path) -> ModuleType:
    # A name of its own: a file called json.py must not stand in for a module of that name.
    name = f"reward_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"reward.function: {path} is no Python file. Name it with .py at the end.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look modules up by name
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UsageError(
            f"reward.function: {path}:{error.lineno}: {error.msg}. Mend the file."
        ) from error
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = frames[-1].lineno if frames else 1
        raise UsageError(
            f"reward.function: {path}:{line}: importing it raised {type(error).__name__}: {error}. "
            f"Mend the file."
        ) from error
    return module


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
