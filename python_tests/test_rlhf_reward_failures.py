"""What is said of rewards that fail: a line for each kind, however many samples and steps."""

import pytest

from hybridengine.rlhf.config.schema import Config, Gym
from hybridengine.rlhf.data import open_data
from hybridengine.rlhf.trainer.reward_failures import RewardFailures

pytestmark = pytest.mark.python


def _error(row: int, what: str) -> str:
    return f"a.jsonl:{row} (data_source 'x'): {what}"


def test_a_kind_of_failure_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    failures = RewardFailures()
    for row in range(3):
        failures.tell([_error(row, f"reward 'f' raised ValueError at f.py:3: no unit {row}")], 8)
        failures.tell([_error(row, f"reward 'f' returned '{row}: a, not b', not a number.")], 8)
        failures.tell([], 8)
    limit = "took more than 2 s (reward.timeout_s) (signal SIGKILL)."
    failures.tell([_error(7, "reward 'f' raised ValueError at f.py:4: x")], 8)
    failures.tell([_error(8, limit), _error(9, "reward 'g' returned None, not a number.")] * 2, 8)
    failures.tell([_error(9, limit)], 8)
    before = "samples have reward 0 since it failed; the first: a.jsonl"
    assert capsys.readouterr().err.splitlines() == [
        f"hybridengine: 1 of 8 {before}:0 (data_source 'x'): reward 'f' raised ValueError at "
        "f.py:3: no unit 0",
        f"hybridengine: 1 of 8 {before}:0 (data_source 'x'): reward 'f' returned '0: a, not b', "
        "not a number.",
        f"hybridengine: 1 of 8 {before}:7 (data_source 'x'): reward 'f' raised ValueError at "
        "f.py:4: x",
        f"hybridengine: 2 of 8 {before}:8 (data_source 'x'): {limit}",
        f"hybridengine: 2 of 8 {before}:9 (data_source 'x'): reward 'g' returned None, not a "
        "number.",
    ]


def test_generated_samples_say_of_which_split_they_are() -> None:
    config = Config()
    config.data.gym = Gym(name="chain_sum", size=3)
    config.data.eval_size = 2
    assert open_data(config, "train")[2].name() == "chain_sum, sample 2"
    assert open_data(config, "eval")[1].name() == "chain_sum, evaluation sample 1"
