"""What every test shares: child processes like this one, settings, the check of skipped tests."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # spinning threads of several ranks starve each other

import pytest
from hypothesis import settings

import hybridengine


def _share_imports_with_children() -> None:
    """Child processes import the package that is tested here, whatever folder they start in."""
    package = Path(hybridengine.__file__).parents[1]
    inherited = os.environ.get("PYTHONPATH")
    paths = [str(package), str(Path(__file__).parent), *([inherited] if inherited else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["PYTHONSAFEPATH"] = "1"  # without it `python -c` would look into its folder first


_share_imports_with_children()

_DETERMINISTIC = "CI" in os.environ
settings.register_profile("default", deadline=None, derandomize=_DETERMINISTIC)
settings.register_profile("sanitize", deadline=None, derandomize=True, max_examples=15)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expected-skips",
        metavar="FILE",
        type=Path,
        help="fail when a test is skipped for a reason that no regular expression in FILE matches",
    )
    parser.addoption(
        "--full", action="store_true", help="soaks in their full form, of many minutes each"
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--expected-skips")
    if path is not None:
        config.pluginmanager.register(SkipCheck(path), "expected-skips")


class SkipCheck:
    """Turns a skip that nobody expects into a failure of the run.

    The file holds one regular expression a line, matched against the whole reason; `#` starts a
    comment line.
    """

    def __init__(self, path: Path) -> None:
        lines = [line.strip() for line in path.read_text().splitlines()]
        self._path = path
        self._expected = [re.compile(line) for line in lines if line and not line.startswith("#")]
        self._unexpected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        place = report.longrepr
        reason = str(place[2] if isinstance(place, tuple) else place).removeprefix("Skipped: ")
        if not any(pattern.fullmatch(reason) for pattern in self._expected):
            self._unexpected.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._unexpected and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._unexpected:
            terminalreporter.section("skips that are not expected", red=True)
            for line in self._unexpected:
                terminalreporter.write_line(line)
            terminalreporter.write_line(f"Mend the cause, or add the reason to {self._path}.")


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of ours is set, and what the test set is forgotten afterwards."""
    from hybridengine import _core

    def forget() -> None:
        _core.refresh_log()
        _core.refresh_trace()
        _core.refresh_isa()
        _core.set_rank(-1)
        _core.set_thread_rank(-1)

    for name in [name for name in os.environ if name.startswith("HYBRIDENGINE_")]:
        monkeypatch.delenv(name)
    forget()
    yield
    monkeypatch.undo()
    forget()


@pytest.fixture
def run_core() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs code in a fresh interpreter that has _core, for what happens at first use and at exit.

    Keyword arguments are the variables of ours that are set there.
    """

    def run(code: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        others = {k: v for k, v in os.environ.items() if not k.startswith("HYBRIDENGINE_")}
        return subprocess.run(
            [sys.executable, "-c", "from hybridengine import _core\n" + code],
            env=others | variables,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `hybridengine bench ...` in this process: (exit code, stdout, stderr)."""
    from hybridengine.command import cli

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(["bench", *arguments])
        return (code, *capsys.readouterr())

    return call
