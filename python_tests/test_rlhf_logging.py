"""Sinks: what each writes, and that all are closed."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.logging import SINKS, Sinks, open_sinks
from hybridengine.rlhf.logging.columns import COLUMNS

pytestmark = pytest.mark.python

_METRICS = {
    "reward/mean": 0.25,
    "actor/ref_kl": 0.0123,
    "actor/clip_share": 0.105,
    "reshard/received_bytes": 463_616.0,
    "time/rollout": math.nan,
}


class _Recorder:
    def __init__(self, log: list[str], name: str, fails: bool = False) -> None:
        self._log, self._name, self._fails = log, name, fails

    def log(self, step: int, metrics: Any) -> None:
        self._log.append(f"{self._name} {step}")

    def close(self) -> None:
        self._log.append(f"{self._name} closed")
        if self._fails:
            raise OSError("disk full")


def test_all_get_the_numbers_and_all_are_closed() -> None:
    log: list[str] = []
    sinks = Sinks([_Recorder(log, "a"), _Recorder(log, "b", fails=True), _Recorder(log, "c")])
    sinks.log(1, {})
    with pytest.raises(OSError, match="disk full"):
        sinks.close()
    assert log == ["a 1", "b 1", "c 1", "c closed", "b closed", "a closed"]
    sinks.close()
    assert len(log) == 6


def test_files_hold_every_number(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = Config()
    config.trainer.loggers = ["jsonl", "tensorboard"]
    sinks = open_sinks(config, tmp_path)
    sinks.log(1, _METRICS)
    sinks.log(2, {"reward/mean": 0.5})
    sinks.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in lines)
    assert first == {**_METRICS, "step": 1, "time/rollout": None}  # NaN is no JSON
    assert second == {"step": 2, "reward/mean": 0.5}
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward/mean")] == [(1, 0.25), (2, 0.5)]


def test_steps_behind_a_checkpoint_are_there_once(tmp_path: Path) -> None:
    """A run that was killed behind step 3 goes on from step 2."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = Config()
    config.trainer.loggers = ["jsonl", "tensorboard"]
    killed = open_sinks(config, tmp_path)
    killed.log(0, {"eval/reward": 0.0})
    for step in (1, 2, 3):
        killed.log(step, {"reward/mean": float(step)})
    killed.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew')  # killed in the middle of a line
    resumed = open_sinks(config, tmp_path, 2)
    for step in (3, 4):
        resumed.log(step, {"reward/mean": 10.0 * step})
    resumed.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line.get("reward/mean")) for line in lines] == [
        (0, None),
        (1, 1.0),
        (2, 2.0),
        (3, 30.0),
        (4, 40.0),
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "tensorboard"}
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("reward/mean")]
    assert found == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]


def test_wandb_keeps_an_offline_run_below_the_folder(tmp_path: Path) -> None:
    config = Config()
    sink = SINKS["wandb"](config, tmp_path, 0)
    sink.log(1, {"reward/mean": 0.25})
    sink.close()
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def test_the_console_gets_steps_and_evaluations(capsys: pytest.CaptureFixture[str]) -> None:
    sink = SINKS["console"](Config(), Path(), 0)
    sink.log(0, {"eval/reward": 0.1})
    sink.log(1, {**_METRICS, "eval/reward": 0.25})
    sink.log(1, {"eval/reward": 0.25, "eval/loss": 1.5})
    sink.close()
    before, heading, line, after, last = capsys.readouterr().out.splitlines()
    assert before == "evaluation before the first step: reward 0.100"
    assert heading.split() == ["step", "reward", "KL", "clip", "rollout", "moved"]
    assert line.split() == ["1", "0.250", "0.0123", "10.5%", "nan", "464", "kB"]
    assert after == "evaluation after step 1: reward 0.250"
    assert last == "evaluation after step 1: reward 0.250, loss 1.500"


def test_columns_that_come_later_have_a_heading_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink = SINKS["console"](Config(), Path(), 0)
    sink.log(1, {"reward/mean": 0.0, "reward/errors": 0.0})
    sink.log(2, {"reward/mean": 0.0, "actor/ref_kl": 0.5})
    sink.log(3, {"reward/mean": 0.0})
    sink.close()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["step", "reward"],
        ["1", "0.000"],
        ["step", "reward", "KL"],
        ["2", "0.000", "0.5000"],
        ["3", "0.000", "-"],
    ]


def test_columns_are_of_known_metrics() -> None:
    groups = {"reward", "reward_model", "rollout", "actor", "time", "reshard"}
    assert {column.metric.split("/")[0] for column in COLUMNS} == groups
