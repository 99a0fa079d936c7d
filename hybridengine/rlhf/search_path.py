"""search_path: where this process finds modules, for processes that must find the same ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def search_path() -> str:
    """As PYTHONPATH: sys.path in its order, with the current folder where an entry is relative."""
    return os.pathsep.join(str(Path.cwd() / entry) for entry in sys.path)
