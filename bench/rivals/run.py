"""Ours and the rivals on the same sizes, one after the other, in one table.

    python bench/rivals/run.py --venvs DIRECTORY [--json rows.json]

Rivals live in virtual environments of their own, DIRECTORY/nixl, DIRECTORY/mooncake and
DIRECTORY/awex, which --install makes. None of them is needed by anything else here. Ours, memcpy
and gloo come from `hybridengine bench send_recv`, which must be installed where this runs. Times
are medians; who writes into the other's memory is timed until its own end is done, ours until the
slowest rank is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
# What each environment holds, in the order of installation.
_PACKAGES = {
    "nixl": [["torch", "numpy"], ["--no-deps", "nixl-cu12"]],
    "mooncake": [["numpy", "mooncake-transfer-engine-non-cuda"]],
    "awex": [
        ["torch", "numpy", "transformers", "mooncake-transfer-engine-non-cuda"],
        ["--no-deps", "megatron-core"],
        ["awex"],
    ],
}
_JOBS = ["1x4K", "1x64K", "1x256K", "1x1M", "1x4M", "1x16M", "1x64M", "1x256M", "4096x64K"]
# Of the system, which pip does not install, and what does.
_LIBRARIES = {
    "libibverbs.so": "Install rdma-core's libraries (apt install libibverbs1).",
    "libnuma.so": "Install it (apt install libnuma1).",
    "libcuda.so": "It comes with NVIDIA's driver.",
}
# A transfer of fewer bytes is shorter than two ranks need to start together: like the rivals, ours
# makes so many on end.
_SHORT_BYTES, _REPEATS = 1 << 20, "50"
_LIMIT_SECONDS = 900
_RIVAL_LIMIT_SECONDS = 60  # some hang at some sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venvs", type=Path, required=True, help="where the environments are")
    parser.add_argument("--install", action="store_true", help="make them first")
    parser.add_argument("--only", nargs="*", choices=[*_PACKAGES], default=[*_PACKAGES])
    parser.add_argument("--jobs", nargs="+", default=_JOBS, help="COUNTxBYTES")
    parser.add_argument("-n", "--iters", default="20")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    given = parser.parse_args()
    if given.install:
        for name in given.only:
            _install(given.venvs / name, _PACKAGES[name])
    missing = {name: _missing(given.venvs / name, name) for name in given.only}
    rows: list[dict[str, Any]] = []
    for job in given.jobs:
        rows += _ours(job, given.iters)
        for name in given.only:
            if missing[name]:
                continue
            rows += _rival(given.venvs / name, name, job, given.iters)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    lines = _table(rows, given.jobs)
    lines += [f"\n{name} is left out: {why}" for name, why in missing.items() if why]
    sys.stdout.write("\n".join(lines) + "\n")


def _install(directory: Path, steps: list[list[str]]) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    for packages in steps:
        subprocess.run([str(directory / "bin" / "pip"), "install", "-q", *packages], check=True)


def _missing(directory: Path, name: str) -> str:
    """Why the rival cannot run here, and the mend; empty where it can."""
    python = directory / "bin" / "python"
    if not python.exists():
        return f"there is no environment {directory}. Make it with --install."
    found = _run([str(python), str(_HERE / f"{name}_pair.py")], _RIVAL_LIMIT_SECONDS)
    why = found.stdout.strip() or (found.stderr.strip().splitlines() or [""])[-1]
    if found.returncode == 0 and not found.stdout.strip():
        return ""
    mends = [mend for library, mend in _LIBRARIES.items() if library in why]
    return f"{why.rstrip('.')}. {mends[0] if mends else 'Make it anew with --install.'}"


def _ours(job: str, iters: str) -> list[dict[str, Any]]:
    """Rows of memcpy, ours (fresh results, and out= of both kinds) and gloo."""
    count, _, part = job.partition("x")
    total = str(int(count) * _bytes(part))
    # -P: what is installed, even where a source folder is the current one.
    line = [sys.executable, "-P", "-m", "hybridengine", "bench", "send_recv", "-d", "uint8"]
    line += ["-J", "-"]
    line += ["-b", total, "-e", total, "--tensors", count, "-n", iters]
    if int(total) <= _SHORT_BYTES:
        line += ["-m", _REPEATS]
    rows = []
    for out, rival in (("torch", ["--rival", "all"]), ("ours", [])):
        done = _run([*line, "--out", out, *rival])
        if done.returncode != 0:
            rows.append({"who": f"hybridengine, out= {out}", "error": done.stderr, "job": job})
            continue
        rows += [row for found in json.loads(done.stdout) for row in _flat(found, out, job)]
    return rows


def _flat(row: dict[str, Any], out: str, job: str) -> list[dict[str, Any]]:
    """The halves of a row that the table shows, once each."""
    who = row["rival"]
    halves = [("in_place", f"hybridengine, out= {out}")]
    if who is not None:
        halves = [("in_place", who)] if out == "torch" else []
    elif out == "torch":
        halves.insert(0, ("out_of_place", "hybridengine, fresh"))
    return [
        {
            "who": name,
            "job": job,
            "size": row["size"],
            "time_us": row[half]["wall_us"],
            "nwrong": row[half]["nwrong"],
        }
        for half, name in halves
    ]


def _rival(directory: Path, name: str, job: str, iters: str) -> list[dict[str, Any]]:
    script = str(_HERE / f"{name}_pair.py")
    try:
        line = [str(directory / "bin" / "python"), script, job, "-n", iters]
        done = _run(line, _RIVAL_LIMIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [{"who": name, "job": job, "error": str(error)}]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return [{"who": name, "job": job, "error": f"exit code {done.returncode}"}]
    return [{**json.loads(line), "job": job} for line in lines]


def _run(line: list[str], limit: float = _LIMIT_SECONDS) -> subprocess.CompletedProcess[str]:
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    environment.pop("PYTHONSAFEPATH", None)  # a rival's script imports what lies beside it
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=limit)


def _bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _table(rows: list[dict[str, Any]], jobs: list[str]) -> list[str]:
    """GB/s (1e9) and microseconds, a column per job."""
    names = list(dict.fromkeys(row["who"] for row in rows))
    found = {(row["who"], row["job"]): row for row in rows}
    lines = [f"| GB/s (us) | {' | '.join(jobs)} |", "|---" * (len(jobs) + 1) + "|"]
    for name in names:
        cells = [_cell(found.get((name, job))) for job in jobs]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        f"\n{row['who']}, {row['job']}: {row['error'].strip().splitlines()[-1]}"
        for row in rows
        if row.get("error")
    ]
    return lines


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    if row.get("error"):
        return "fails"
    wrong = f", {row['nwrong']} wrong" if row["nwrong"] else ""
    return f"{row['size'] / row['time_us'] / 1e3:.2f} ({row['time_us']:.0f}{wrong})"


if __name__ == "__main__":
    main()
