"""cache: the user's folder for what is made or measured once."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """$XDG_CACHE_HOME/hybridengine, or ~/.cache/hybridengine."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "hybridengine"
