"""bench/rivals/run.py: it finds what is installed, and says in a line what a rival lacks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.python, pytest.mark.slow]

_RUN = Path(__file__).parents[1] / "bench" / "rivals" / "run.py"


def test_rivals_run_from_a_source_folder_and_name_what_they_lack(tmp_path):
    """The current folder has a package without a core, as the source folder has."""
    (tmp_path / "hybridengine").mkdir()
    (tmp_path / "hybridengine" / "__init__.py").write_text("raise ImportError('no core here')")
    python = tmp_path / "venvs" / "mooncake" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    # As where rdma-core is missing, whose libraries Mooncake's module is linked to.
    library = "libibverbs.so.1: cannot open shared object file: No such file or directory"
    modules = tmp_path / "modules" / "mooncake"
    modules.mkdir(parents=True)
    (modules / "__init__.py").write_text("")
    (modules / "engine.py").write_text(f"raise ImportError({library!r})")
    line = [sys.executable, str(_RUN), "--venvs", "venvs", "--only", "nixl", "mooncake"]
    line += ["--jobs", "1x64K", "3x1K", "-n", "1", "--json", "rows.json"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "modules")}
    environment.pop("PYTHONSAFEPATH", None)  # as people have it
    done = subprocess.run(
        line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {row["who"] for row in rows} == {
        *("hybridengine, fresh", "hybridengine, out= torch", "hybridengine, out= ours"),
        *("memcpy", "gloo_send_recv"),
    }
    assert all("error" not in row and row["nwrong"] == 0 for row in rows)
    left_out = [line for line in done.stdout.splitlines() if " is left out: " in line]
    assert left_out == [
        "nixl is left out: there is no environment venvs/nixl. Make it with --install.",
        f"mooncake is left out: {library}. Install rdma-core's libraries "
        "(apt install libibverbs1).",
    ]
