"""streams: stdin, stdout and stderr of a command, whatever it was started with."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from hybridengine._core import UsageError


def open_streams() -> None:
    """Makes them fit to use. Throws UsageError where there is no stdout, whose number the next file
    would get.

    Characters that the terminal's encoding lacks are escaped, as stderr's are.
    """
    for number in (0, 2):
        if not _is_open(number):
            # Gets the lowest number that is free; children have it too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        raise UsageError("stdout is closed. Redirect it to a file, or to /dev/null.")
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def unwritten(stream: TextIO) -> OSError | None:
    """What hinders stdout or stderr from taking what was written; it is dropped then, or the end of
    the interpreter would try once more and change the exit code."""
    try:
        stream.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return error
    return None


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
