"""registry: names for the functions of one kind, so that a config can choose among them.

An entry exists once the module that decorates it is imported; path.py:name stands for a function of
the user's own (plugins.py). It needs no torch, as the processes that compute rewards have none.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from hybridengine._core import UsageError
from hybridengine.rlhf.plugins import is_reference, load_plugin
from hybridengine.wording import nearest

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])


class Registry(Generic[Result]):
    """Functions that return a `Result`, by name. `kind` is the word for one of them in errors.

    A registry is itself the decorator: `@advantage("gae")`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Callable[..., Result]] = {}
        self._plugins: dict[str, Callable[..., Result]] = {}

    def __call__(self, name: str) -> Callable[[Function], Function]:
        """Registers the decorated function as `name`. Throws UsageError if the name is taken."""
        if name in self._entries:
            raise UsageError(
                f"two of kind {self.kind} are named {name!r}: the first is "
                f"{self._entries[name].__qualname__}. Give the second another name."
            )

        def register(function: Function) -> Function:
            self._entries[name] = function
            return function

        return register

    def names(self) -> tuple[str, ...]:
        """All names, in order of registration."""
        return tuple(self._entries)

    def get(self, name: str) -> Callable[..., Result]:
        """The function called `name`, or that of a path.py:name. Throws UsageError that lists the
        names and the nearest, and as load_plugin() does."""
        if is_reference(name):
            if name not in self._plugins:
                self._plugins[name] = load_plugin(name, self.kind)
            return self._plugins[name]
        if name not in self._entries:
            raise UsageError(
                f"{name!r} is no {self.kind}: known are {', '.join(self._entries)}. "
                f"Use {nearest(name, self._entries)}."
            )
        return self._entries[name]

    def options(self, name: str) -> tuple[str, ...]:
        """The keyword arguments of the function called `name`."""
        parameters = inspect.signature(self.get(name)).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    def bind(self, name: str, **options: Any) -> Callable[..., Result]:
        """The function called `name` with `options` set. Throws UsageError on one it lacks."""
        known = self.options(name)
        for option in options:
            if option not in known:
                raise UsageError(
                    f"{self.kind} {name!r} has no option {option!r}: it takes "
                    f"{', '.join(known) or 'none'}. "
                    + (f"Use {nearest(option, known)}." if known else "Leave it out.")
                )
        return functools.partial(self.get(name), **options)
