"""Surroundings in which everything is odd at once: no home, a TMPDIR that is too long for sockets,
a terminal of ASCII, and files in the current folder that have the names of modules."""

import os
import subprocess
import sys
from pathlib import Path

_HIDDEN = {"HOME", "XDG_CACHE_HOME", "PYTHONSAFEPATH"}
_COMMAND = "from hybridengine.command.cli import main\nif __name__ == '__main__':\n    main()\n"


def run_in(top: Path, arguments: list[str], timeout: float) -> "subprocess.CompletedProcess[str]":
    """The command, as installed ones are: it does not look for modules in the current folder
    itself. Afterwards nothing is left in TMPDIR but torch's cache."""
    command = top / "bin" / "hybridengine"
    command.parent.mkdir()
    command.write_text(_COMMAND)
    folder = top / "shadows"
    (folder / "numpy").mkdir(parents=True)
    for name in ("random", "torch", "signal", "ray", "numpy/__init__"):
        (folder / f"{name}.py").write_text("raise SystemExit('this is a file of the user')\n")
    long = top / ("a" * 100)
    long.mkdir()
    inherited = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
    changed = {"TMPDIR": str(long), "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, str(command), *arguments],
        cwd=folder,
        env={**inherited, **changed},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    left = [path.name for path in long.iterdir() if not path.name.startswith("torchinductor")]
    assert left == []
    return done
