"""Rewards in processes: what hangs, crashes or lies costs its own sample and nothing else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridengine import UsageError
from hybridengine.rlhf.config.schema import Reward
from hybridengine.rlhf.rewards import Item, RewardProcesses

pytestmark = pytest.mark.python

# Each solution is a deed; "4" is scored 1 and anything else as the deed ends.
DEEDS = """
import os, signal, subprocess, sys, time

def deed(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str == "loop":
        while True:
            pass
    if solution_str == "swallow":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        while True:
            try:
                time.sleep(1)
            except BaseException:
                pass
    if solution_str == "native":
        sum(range(10**12))  # one call that holds the interpreter
    if solution_str == "child":
        child = subprocess.Popen(["sleep", "1000"])
        open(extra_info, "w").write(str(child.pid))
        child.wait()
    if solution_str == "exit":
        os._exit(5)
    if solution_str == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if solution_str == "raise":
        raise ValueError("two\\nlines")
    if solution_str == "nan":
        return float("nan")
    if solution_str == "none":
        return None
    if solution_str == "modules":
        return {"score": float("torch" in sys.modules), "ray": "ray" in sys.modules}
    if solution_str == "pid":
        return os.getpid()
    print("printed by a reward")
    return float(solution_str == "4")
"""


@pytest.fixture
def reward(tmp_path: Path) -> Reward:
    (tmp_path / "deeds.py").write_text(DEEDS)
    path = f"{tmp_path / 'deeds.py'}:deed"
    return Reward(functions=[], function=path, workers=2, timeout_s=2.0)


@pytest.fixture
def rewards(reward: Reward) -> Iterator[RewardProcesses]:
    with RewardProcesses(reward) as processes:
        yield processes


def items(*solutions: str, extra: object = None) -> list[Item]:
    return [Item("deeds", solution, None, extra, 100 + i) for i, solution in enumerate(solutions)]


def gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has reaped yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + 30
    while not gone(pid):
        assert time.monotonic() < end, f"process {pid} is still there"
        time.sleep(0.01)


def test_scores_come_in_the_order_of_the_items(rewards: RewardProcesses) -> None:
    solutions = ["4" if i % 3 == 0 else "5" for i in range(301)]
    found = rewards.score(items(*solutions))
    assert [score.value for score in found] == [float(text == "4") for text in solutions]
    assert all(score.parts == {"deed": score.value} for score in found)
    assert rewards.score([]) == []


def test_a_reward_prints_what_the_surroundings_cannot_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    print(solution_str, flush=True)\n    return 1.0\n"
    )
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    config = Reward(functions=[], function=f"{tmp_path}/mine.py:score")
    with RewardProcesses(config) as rewards:
        (score,) = rewards.score(items("é \U0001f600"))
    assert (score.value, score.error) == (1.0, None)
    assert "\\xe9 \\U0001f600" in capfd.readouterr().err


def test_no_torch_and_no_ray_in_a_reward_process(rewards: RewardProcesses) -> None:
    (score,) = rewards.score(items("modules"))
    assert score.parts == {"deed": 0.0, "deed/ray": 0.0} and score.error is None


def test_rewards_that_do_not_end_are_killed(reward: Reward, tmp_path: Path) -> None:
    reward.workers = 4
    solutions = ["4", "loop", "4", "swallow", "4", "4", "native", "4", "child", "4", "4"]
    with RewardProcesses(reward) as rewards:
        found = rewards.score(items(*solutions, extra=str(tmp_path / "pid")))
    for i, (text, score) in enumerate(zip(solutions, found, strict=True)):
        if text == "4":
            assert (score.value, score.error) == (1.0, None)
        else:
            assert (score.value, score.parts) == (0.0, {})
            assert score.error == (
                f"sample {100 + i} (data_source 'deeds'): took more than 2 s (reward.timeout_s) "
                f"(signal SIGKILL)."
            )
    wait_until_gone(int((tmp_path / "pid").read_text()))  # what the reward itself had started


def test_a_process_that_ends_costs_one_sample(rewards: RewardProcesses) -> None:
    solutions = ["4", "exit", "4", "4", "kill", "4", "exit", "exit", "4"]
    found = rewards.score(items(*solutions))
    assert [score.value for score in found] == [float(text == "4") for text in solutions]
    assert found[1].error == (
        "sample 101 (data_source 'deeds'): the process that scored it ended (exit code 5)."
    )
    assert "sample 104 (data_source 'deeds')" in str(found[4].error)
    assert "(signal SIGKILL)" in str(found[4].error)
    assert [score.value for score in rewards.score(items("4", "4"))] == [1.0, 1.0]


def test_bad_returns_are_errors_of_their_samples(rewards: RewardProcesses) -> None:
    found = rewards.score(items("raise", "nan", "none", "4"))
    assert [score.value for score in found] == [0.0, 0.0, 0.0, 1.0]
    start = "sample 100 (data_source 'deeds'): reward 'deed' raised ValueError at "
    assert str(found[0].error).startswith(start) and str(found[0].error).endswith(": two lines")
    assert "returned nan" in str(found[1].error) and "returned None" in str(found[2].error)


@pytest.mark.parametrize("deed", ["raise", "nan", "exit", "loop"])
def test_on_error_raise_ends_the_run(reward: Reward, deed: str) -> None:
    reward.on_error = "raise"
    with RewardProcesses(reward) as rewards:
        pid = int(rewards.score(items("pid"))[0].value)
        with pytest.raises(UsageError, match=r"sample 102 .* set reward\.on_error=zero"):
            rewards.score(items("4", "4", deed))
        wait_until_gone(pid)
        with pytest.raises(UsageError, match="are closed"):
            rewards.score(items("4"))


def test_a_process_that_died_between_calls_is_replaced(rewards: RewardProcesses) -> None:
    for _ in range(3):
        pids = {int(score.value) for score in rewards.score(items(*["pid"] * 40))}
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            wait_until_gone(pid)
        assert [score.error for score in rewards.score(items("4", "4"))] == [None, None]


def test_close_leaves_nothing(reward: Reward) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    rewards = RewardProcesses(reward)
    pid = int(rewards.score(items("pid"))[0].value)
    rewards.close()
    rewards.close()
    assert not Path(f"/proc/{pid}").exists()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_an_object_that_is_forgotten_closes(reward: Reward) -> None:
    rewards = RewardProcesses(reward)
    pid = int(rewards.score(items("pid"))[0].value)
    del rewards
    wait_until_gone(pid)


PARENT = """
import os, sys
from hybridengine.rlhf.config.schema import Reward
from hybridengine.rlhf.rewards import Item, RewardProcesses

rewards = RewardProcesses(Reward(functions=[], function=sys.argv[1], timeout_s=600))
(score,) = rewards.score([Item("deeds", "pid", None, None, 0)])
print(int(score.value), flush=True)
rewards.score([Item("deeds", sys.argv[2], None, None, 0)])
"""


@pytest.mark.parametrize("deed", ["native", "swallow"])
def test_they_end_when_their_parent_is_killed(reward: Reward, deed: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(reward.function), deed],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
    wait_until_gone(pid)


def test_libraries_are_loaded_before_the_time_of_a_sample_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(1.5)")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "lazy.py"
    path.write_text(
        "LIBRARIES = ('slow_to_import',)\n"
        "def f(data_source, solution_str, ground_truth, extra_info):\n"
        "    import slow_to_import\n"
        "    return 1.0\n"
    )
    config = Reward(functions=[], function=f"{path}:f", timeout_s=1.0)
    with RewardProcesses(config) as rewards:
        assert [score.value for score in rewards.score(items("4"))] == [1.0]


def test_without_functions_there_are_no_processes() -> None:
    with RewardProcesses(Reward(functions=[], workers=3)) as rewards:
        assert [score.value for score in rewards.score(items("a", "b"))] == [0.0, 0.0]


def test_a_file_that_raises_only_in_the_process(tmp_path: Path) -> None:
    path = tmp_path / "once.py"
    path.write_text("def f(data_source, solution_str, ground_truth, extra_info): return 1")
    rewards = RewardProcesses(Reward(functions=[], function=f"{path}:f"))
    rewards.close()
    code = f"import os\nif os.getpid() != {os.getpid()}: raise OSError('not here')\n"
    path.write_text(code + path.read_text())
    with (
        RewardProcesses(Reward(functions=[], function=f"{path}:f")) as rewards,
        pytest.raises(UsageError, match=r"once\.py:2: importing it raised OSError: not here"),
    ):
        rewards.score(items("4"))


def test_large_items_and_more_processes_than_items(reward: Reward) -> None:
    reward.workers = 3
    with RewardProcesses(reward) as rewards:
        found = rewards.score(items("4", "x" * (8 << 20)))
        assert [score.value for score in found] == [1.0, 0.0]
