"""patience: work in the core that may last, of which people hear after a second and which they can
end by Ctrl-C."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from rich.console import Console

Result = TypeVar("Result")

_SILENT_S = 1.0
_INTERRUPTED = 130


def with_patience(what: str, work: Callable[[], Result]) -> Result:
    """What `work` returns or raises. Beyond a second, `what` is said on stderr.

    It runs in a thread, as the core cannot be interrupted: Ctrl-C ends the process at once. So
    `work` may have nothing that must be cleared away.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="hybridengine-work", daemon=True)
    with _ends_at_once():
        thread.start()
        thread.join(_SILENT_S)
        if thread.is_alive():
            with _said(what):
                thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    found: Result = result
    return found


def _said(what: str) -> Any:
    """A spinner where people look, else one line."""
    console = Console(stderr=True)
    if console.is_terminal:
        return console.status(what)
    console.print(what, soft_wrap=True, highlight=False, markup=False)
    return nullcontext()


@contextmanager
def _ends_at_once() -> Iterator[None]:
    """Inside, Ctrl-C ends the process: an exit in good order would wait for the core."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("\nerror: interrupted; no rank is left\n")
        sys.stderr.flush()
        os._exit(_INTERRUPTED)
