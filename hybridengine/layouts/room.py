"""room: whether the machine can hold a plan, told from its moves before they are made."""

from __future__ import annotations

from pathlib import Path

from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.layouts.layout import Layout

# Of a plan and its schedule: 240 to 290 measured, more where few moves are shared by many senders.
_BYTES_PER_MOVE = 300

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def check_room(src: Layout, dst: Layout) -> None:
    """Throws UsageError where a plan from `src` to `dst` needs more memory than is free, or where
    the layouts do not fit each other. Of a partial source it counts too few: one contribution to
    each part."""
    moves: int = _core.count_moves(src.core, dst.core)
    free = available_bytes()
    needed = moves * _BYTES_PER_MOVE
    if free is not None and needed > free:
        raise UsageError(
            f"a plan from {src.text} to {dst.text} has {moves:,} moves, some {needed / 1e9:.0f} GB "
            f"of memory; {free / 1e9:.0f} GB are free. Use fewer ranks (a smaller dp, "
            "say), or a machine with more memory."
        )


def available_bytes() -> int | None:
    """Bytes that this process may still take; None where the system does not say."""
    known = [each for each in (_of_host(), _of_group()) if each is not None]
    return min(known, default=None)


def _of_host() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0]) if found else None


def _of_group() -> int | None:
    """What a container's limit leaves; what files use of it can be had back."""
    try:
        most = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        rows = (line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        files = next((int(row[1]) for row in rows if row[0] == "inactive_file"), 0)
    except OSError:
        return None
    return None if most == "max" else int(most) - used + files
