"""search_path: where this process finds modules, for processes that must find the same ones."""

from __future__ import annotations

import os
import sys


def current_folder() -> str | None:
    """None where it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def search_path() -> str:
    """As PYTHONPATH: sys.path in its order, with the current folder where an entry is relative."""
    here = current_folder()
    found = (
        entry if here is None else os.path.join(here, entry)
        for entry in sys.path
        if here is not None or os.path.isabs(entry)
    )
    return os.pathsep.join(found)
