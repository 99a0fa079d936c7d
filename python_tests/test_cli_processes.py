"""The command line as a process of its own: the README, Ctrl-C, killed ranks, what is left."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from small_checkpoint import reshard_arguments, write_checkpoint

from hybridengine._core import UsageError
from hybridengine.command import cli
from hybridengine.models import models

pytestmark = pytest.mark.python


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.mark.slow
def test_the_first_command_of_the_readme():
    try:
        models.resolve("smollm2-135m").open()
    except UsageError as error:
        pytest.skip(f"no weights of smollm2-135m: {error}")
    arguments = reshard_arguments(
        "smollm2-135m", "fsdp2(6)", "vllm(tp=3,dp=2)", "--verify", "--json", "-"
    )
    done = subprocess.run(
        [sys.executable, "-m", "hybridengine", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert (result["received_over_bound"], result["mismatched_elements"]) == (1.0, 0)


def descendants(pid: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


class Held:
    """A reshard of three ranks in a process group of its own, held up by rank 0: it is stopped."""

    def __init__(self, checkpoint: str) -> None:
        arguments = reshard_arguments(checkpoint, "fsdp2(3)", "vllm(tp=3)", "--timeout", "60")
        self.folder = (
            tempfile.TemporaryDirectory()
        )  # its own, so that nobody else's files are there
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hybridengine", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": self.folder.name},
        )
        self.ranks: list[int] = []

    def wait_for_ranks(self) -> None:
        end = time.monotonic() + 30
        while len(self.ranks) < 3 and time.monotonic() < end:
            # The ranks are the children of the fork server, which is a child of the command.
            mine = descendants(self.process.pid)
            self.ranks = sorted(pid for server in mine for pid in descendants(server))
            if self.ranks:
                os.kill(self.ranks[0], signal.SIGSTOP)
        assert len(self.ranks) == 3
        self.all = descendants(self.process.pid)

    def end(self, seconds: float) -> tuple[int, str]:
        """Its exit code and stderr, after checking that nothing is left of it in time."""
        end = time.monotonic() + seconds
        code = self.process.wait(seconds)
        while any(map(is_running, self.all)) and time.monotonic() < end:
            time.sleep(0.02)
        assert [pid for pid in self.all if is_running(pid)] == []
        assert list(Path(self.folder.name).glob("hybridengine.*")) == []
        return code, self.process.stderr.read()

    def close(self) -> None:
        for pid in [self.process.pid, *self.ranks]:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(5)
        self.process.stderr.close()


@pytest.fixture
def held(checkpoint):
    run = Held(checkpoint)
    try:
        run.wait_for_ranks()
        yield run
    finally:
        run.close()


def test_ctrl_c_ends_everything_at_once(held):
    os.killpg(held.process.pid, signal.SIGINT)
    code, err = held.end(2)
    assert code == cli.INTERRUPTED == 130
    assert err.strip() == "error: interrupted; no rank is left"


def test_sigterm_ends_everything_at_once(held):
    held.process.terminate()
    assert held.end(2) == (143, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_too(held, number):
    os.killpg(held.process.pid, number)
    assert held.end(4) == (128 + number, "")


def test_a_killed_rank_is_named(held):
    os.kill(held.ranks[1], signal.SIGKILL)
    code, err = held.end(4)
    assert code == cli.FAILED == 3
    assert err == "error: rank 1 died: SIGKILL. See what it wrote to stderr.\n"


_ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_example_of_torchrun():
    script = str(_ROOT / "examples" / "torchrun_reshard.py")
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone"]
    done = subprocess.run(
        [sys.executable, *launcher, script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    # torchrun's ranks are unbuffered: a line's end may come after another rank's line.
    rows = re.findall(r"rank (\d): received (\d+) bytes of (\d+)", done.stdout)
    assert sorted(int(rank) for rank, _, _ in rows) == [0, 1, 2, 3]
    assert all(received == bound != "0" for _, received, bound in rows)
    assert done.stdout.count("qkv_proj is (64, 64)") == 4


@pytest.mark.slow
def test_the_example_of_local_ranks():
    script = str(_ROOT / "examples" / "local_ranks.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[[], [], [10]]\n"), done.stderr


def test_the_readme_shows_the_example_that_is_tested():
    code = (_ROOT / "examples" / "torchrun_reshard.py").read_text().split('"""\n\n', 1)[1]
    assert f"```python\n{code}```" in (_ROOT / "README.md").read_text()
