"""The check of skipped tests: a run fails on a skip that nobody expects, and only then."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.static

_TESTS = """
import pytest

def test_passes(): pass

@pytest.mark.skip(reason="no device: mlx5_0")
def test_skipped(): pass

@pytest.mark.xfail(reason="known")
def test_expected_to_fail(): assert False
"""


def _run(folder: Path, *expected: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    (folder / "test_it.py").write_text(_TESTS)
    (folder / "skips.txt").write_text("\n".join(["# reasons", "", *expected]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    command += ["--rootdir=.", "--expected-skips=skips.txt"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_an_unexpected_skip_fails_and_is_named(tmp_path: Path) -> None:
    done = _run(tmp_path, "no device")  # matches only the beginning of the reason
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "test_it.py::test_skipped: no device: mlx5_0" in done.stdout


def test_an_expected_skip_and_an_expected_failure_pass(tmp_path: Path) -> None:
    done = _run(tmp_path, "no device: .*")
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert "1 passed, 1 skipped, 1 xfailed" in done.stdout
