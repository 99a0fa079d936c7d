"""Rows of results as JSON: each row says by itself what was measured, by which commit, and where.

Of the environment only what steers us and NCCL is recorded, and never a secret.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from hybridengine import _core
from hybridengine._core import UsageError

SCHEMA_VERSION = 1

_PREFIXES = ("HYBRIDENGINE_", "NCCL_")
_NAMES = ("CUDA_VISIBLE_DEVICES",)
_SECRET = ("HYBRIDENGINE_TOKEN",)


def provenance(bench: str, arguments: list[str]) -> dict[str, Any]:
    """What every row of a run has in common."""
    facts = _core.build_facts()
    return {
        "schema_version": SCHEMA_VERSION,
        "bench": bench,
        "version": facts["version"],
        "commit": facts["commit"],
        "command": " ".join(["hybridengine bench", bench, *arguments]),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "python": platform.python_version(),
            "load_average": list(os.getloadavg()),
        },
        "env": recorded_environment(dict(os.environ)),
    }


def recorded_environment(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name.startswith(_PREFIXES) or name in _NAMES) and name not in _SECRET
    }


def check_path(path: str | None) -> None:
    """Throws UsageError before the work rather than after it."""
    if path is not None and path != "-" and not Path(path).absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}: its folder does not exist. Name another file.")


def write(path: str, rows: list[dict[str, Any]]) -> None:
    """All rows as one JSON list, one row a line; `-` is stdout."""
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}. Name another file.") from error


def read(path: str) -> list[dict[str, Any]]:
    """Throws UsageError on what is no file of rows."""
    try:
        rows = json.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}.") from error
    if not isinstance(rows, list) or any(
        not isinstance(row, dict) or row.get("schema_version") != SCHEMA_VERSION for row in rows
    ):
        raise UsageError(
            f"{path} holds no rows of schema version {SCHEMA_VERSION}. Make it with "
            "hybridengine bench ... --json."
        )
    return rows


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
