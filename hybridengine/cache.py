"""cache: the user's folder for what is made or measured once, and what stands in for it."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from hybridengine import _core


def cache_directory() -> Path | None:
    """$XDG_CACHE_HOME/hybridengine, or ~/.cache/hybridengine. None without a home directory."""
    root = os.environ.get("XDG_CACHE_HOME")
    if root:
        return Path(root) / "hybridengine"
    try:
        return Path.home() / ".cache" / "hybridengine"
    except RuntimeError:  # no HOME, and a user without a name
        return None


def writable_directory() -> Path:
    """cache_directory() where it can be written, made if need be; else, with one warning, a folder
    of this user's in TMPDIR. Throws OSError where that cannot be written either."""
    wanted = cache_directory()
    if wanted is not None:
        with contextlib.suppress(OSError):
            wanted.mkdir(parents=True, exist_ok=True)
        if os.access(wanted, os.W_OK | os.X_OK):
            return wanted
    return _stand_in(wanted)


@cache
def _stand_in(wanted: Path | None) -> Path:
    folder = Path(tempfile.gettempdir()) / f"hybridengine-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not this user's folder")
    why = "there is no home directory" if wanted is None else f"{wanted} cannot be written"
    _core.log("warn", "base", f"{why}: what is kept goes to {folder}. Set XDG_CACHE_HOME.")
    return folder
