"""failure: what ends a run from outside it, e.g. a full disk, told in one line."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hybridengine._core import TransportError
from hybridengine.rlhf.training.state import line_of

_OF_A_DISK = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ESTALE,
}


class RunError(TransportError):
    """The run could not write what it was to leave. What was written before is whole."""


class NotExported(RunError):
    """All steps are done, and only hf/ is missing."""


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Inside, an OSError of a disk, or of a file in the run's folder, becomes a RunError; one in
    another thread, such as TensorBoard's, which raises it again in ours, is a line there."""
    hook = threading.excepthook

    def say(thread: threading.ExceptHookArgs) -> None:
        error = thread.exc_value
        if isinstance(error, OSError) and _is_of_a_disk(error, folder):
            sys.stderr.write(f"hybridengine: {line_of(error)}\n")
        else:
            hook(thread)

    threading.excepthook = say
    try:
        yield
    except OSError as error:
        if not _is_of_a_disk(error, folder):
            raise
        raise RunError(f"{folder} cannot be written: {line_of(error)}") from error
    finally:
        threading.excepthook = hook


def finish(run: Path, parts: Sequence[Callable[[], object]]) -> None:
    """Does all parts of the end of a run, also those behind one that fails, and then throws what
    failed as one RunError (NotExported if that is among it)."""
    failures: list[TransportError] = []
    for part in parts:
        try:
            with disk_errors(run):
                part()
        except TransportError as error:
            failures.append(error)
    if failures:
        unexported = any(isinstance(error, NotExported) for error in failures)
        said = dict.fromkeys(str(error).rstrip(".") for error in failures)  # once, if the same
        words = ". Also: ".join(said)
        raise (NotExported if unexported else RunError)(words) from failures[0]


def _is_of_a_disk(error: OSError, folder: Path) -> bool:
    return error.errno in _OF_A_DISK or str(error.filename or "").startswith(str(folder))
