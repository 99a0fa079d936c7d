"""plugins: a function or class of a user's own file, given as path.py:name.

What the function must take and return is for those to say who ask for it. This needs no torch, as
the processes that compute rewards have none.
"""

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
from hybridengine.wording import nearest


def is_reference(text: str) -> bool:
    """Whether it is meant as path.py:name rather than as a name."""
    return ":" in text or text.endswith(".py")


def referred_name(reference: str, key: str) -> str:
    """The name in `path.py:name`. Throws UsageError, which names `key` of the config, for text of
    another form."""
    path, _, name = reference.rpartition(":")
    if not path or not name.isidentifier():
        raise UsageError(
            f"{key}: {reference!r} is not of the form path.py:name. "
            f"Name a file and a function in it, e.g. mine.py:name."
        )
    return name


def load_plugin(reference: str, key: str) -> Callable[..., Any]:
    """What the file, which is imported, calls `name`.

    Throws UsageError, which names `key` of the config, where the file is missing or raises, or has
    nothing of this name that can be called.
    """
    name = referred_name(reference, key)
    path = Path(reference.rpartition(":")[0])
    if not path.is_file():
        raise UsageError(f"{key}: there is no file {str(path)!r}. Mend the path.")
    module = _import(path, key)
    if not hasattr(module, name):
        functions = [each for each, value in vars(module).items() if inspect.isfunction(value)]
        has = f"it has {', '.join(functions)}" if functions else "it has no function"
        mend = f"Use {nearest(name, functions)}" if functions else f"Define {name} there"
        raise UsageError(f"{key}: {path} has no {name!r}: {has}. {mend}.")
    found = getattr(module, name)
    if not callable(found):
        raise UsageError(
            f"{key}: {name!r} of {path} is a {type(found).__name__}, not a function. "
            f"Name a function."
        )
    loaded: Callable[..., Any] = found
    return loaded


def _import(path: Path, key: str) -> ModuleType:
    # A name of its own: a file called json.py must not stand in for a module of that name.
    name = f"plugin_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{key}: {path} is no Python file. Name it with .py at the end.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look modules up by name
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UsageError(f"{key}: {path}:{error.lineno}: {error.msg}. Mend the file.") from error
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = frames[-1].lineno if frames else 1
        raise UsageError(
            f"{key}: {path}:{line}: importing it raised {type(error).__name__}: {error}. "
            f"Mend the file."
        ) from error
    return module
