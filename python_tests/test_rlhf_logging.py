"""Sinks: what each writes, and that all are closed."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.logging import SINKS, Sinks, open_sinks
from hybridengine.rlhf.logging.console import COLUMNS, ConsoleTable

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


def test_wandb_keeps_an_offline_run_below_the_folder(tmp_path: Path) -> None:
    config = Config()
    sink = SINKS["wandb"](config, tmp_path)
    sink.log(1, {"reward/mean": 0.25})
    sink.close()
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def test_without_a_terminal_a_step_is_a_line() -> None:
    out = io.StringIO()
    table = ConsoleTable(2, Console(file=out, width=300))
    table.log(0, {"eval/reward": 0.1})
    table.log(1, _METRICS)
    table.log(1, {"eval/reward": 0.2})
    table.close()
    before, heading, line, after = out.getvalue().splitlines()
    assert after == "after step 1: eval/reward 0.2"
    assert before == "before the first step: eval/reward 0.1"
    assert heading.split() == ["step", "reward", "KL", "clipped", "rollout", "s", "moved"]
    assert line.split() == ["1", "0.250", "0.0123", "10.5%", "nan", "464", "kB"]


def test_metrics_of_other_runs_are_shown_by_name() -> None:
    out = io.StringIO()
    table = ConsoleTable(1, Console(file=out, width=300))
    table.log(1, {"reward_model/loss": 0.69314, "reward_model/accuracy": 0.5})
    table.close()
    heading, line = out.getvalue().splitlines()
    assert heading.split() == ["step", "reward_model/loss", "reward_model/accuracy"]
    assert line.split() == ["1", "0.6931", "0.5"]


def test_on_a_terminal_the_table_is_live() -> None:
    out = io.StringIO()
    table = ConsoleTable(20, Console(file=out, force_terminal=True, width=200))
    for step in range(1, 21):
        table.log(step, _METRICS)
    table.close()
    last = out.getvalue().rsplit("rollout s", 1)[1]
    assert "20/20" in last
    assert "\n" in last and " 8  " not in last.split("0.250")[0]  # only the latest steps are shown


def test_columns_are_of_known_metrics() -> None:
    groups = {"reward", "actor", "time", "reshard"}
    assert {column.metric.split("/")[0] for column in COLUMNS} == groups
