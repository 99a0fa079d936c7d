"""refusals: words for what the operating system refuses a command, for which the program is not to
blame."""

from __future__ import annotations

import errno
import os
import resource

_MENDS = {
    errno.EACCES: "Grant it, or name another place.",
    errno.EPERM: "Grant it, or name another place.",
    errno.EROFS: "Name a place that can be written.",
    errno.ENOSPC: "Free some, or name another place.",
    errno.EDQUOT: "Free some, or name another place.",
    errno.ENOENT: "Name one that exists.",
    errno.ENOTDIR: "Name one that exists.",
    errno.EISDIR: "Name a file.",
    errno.EEXIST: "Name another one.",
    errno.ENAMETOOLONG: "Name a shorter one.",
    errno.ELOOP: "Mend its links.",
    errno.ENOMEM: "Use fewer ranks, or a machine with more memory.",
    errno.EAGAIN: "Use fewer ranks, or raise what `ulimit -u` says.",
    errno.EIO: "Look at the device.",
    errno.ESTALE: "Look at the file server.",
}

# What it was for where the system names no file.
_UNNAMED = {errno.ENOSPC: "stdout or a file", errno.EDQUOT: "stdout or a file"}


def refusal(error: OSError) -> str | None:
    """One sentence of what, with the mend. None for what no surroundings explain."""
    number = error.errno
    if number in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"too many open files: `ulimit -n` is {limit}. Raise it, by `ulimit -n 1024`, or use "
            f"fewer ranks."
        )
    if number not in _MENDS or error.strerror is None:
        return None
    place = _UNNAMED.get(number, "") if error.filename is None else os.fsdecode(error.filename)
    what = error.strerror if place else error.strerror.lower()
    return f"{place}{': ' if place else ''}{what}. {_MENDS[number]}"
