"""The example of the documentation runs as it is."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.python

EXAMPLE = Path(__file__).parents[1] / "examples" / "two_step.py"


def test_the_example():
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    for line in lines[::2]:
        first, last = (float(word) for word in line.split("loss ")[1].split(" -> "))
        assert last < first / 2
    # 68 parameters in float32: half of them in each step.
    assert [line.split(": ")[1] for line in lines[1::2]] == [
        "received 272 bytes of 272 in the last step"
    ] * 2
