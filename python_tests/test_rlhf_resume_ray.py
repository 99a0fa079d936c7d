"""Runs on Ray whose driver is killed, in a step, a save and the export: as users start them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rlhf_small_run import SMALL

pytestmark = [pytest.mark.python, pytest.mark.slow, pytest.mark.soak]

_MEASURED = ("/memory_share", "/tokens_per_second", "/flops_share")
_RUN = [
    *SMALL,
    "trainer.ranks=2",
    "trainer.steps=3",
    "trainer.save_interval=1",
    "actor.lora.enable=true",
    "actor.lora.rank=4",
    "actor.lora.dropout=0.5",
    "run.name=run",
]


def _start(folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hybridengine", "train", *_RUN, f"run.dir={folder}", *more],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ends(process: subprocess.Popen[str]) -> None:
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 0, said


def _killed_where(process: subprocess.Popen[str], run: Path, pattern: str) -> None:
    """Kills the driver as soon as a path of this pattern is in its folder."""
    deadline = time.monotonic() + 120
    while not list(run.glob(pattern)):
        assert process.poll() is None and time.monotonic() < deadline, pattern
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def _rows(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {
            name: value
            for name, value in row.items()
            if not name.startswith("time/") and not name.endswith(_MEASURED)
        }
        for row in rows
    ]


def test_a_driver_that_is_killed_costs_no_number(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    _ends(_start(tmp_path / "whole"))
    run, whole = tmp_path / "broken" / "run", tmp_path / "whole" / "run"
    parts = {  # where each ends
        "checkpoints/step_00000001/controller.json": [],  # in the second step
        "checkpoints/step_00000002/actor*": ["run.resume=true"],
        "hf*": ["run.resume=true"],
    }
    for pattern, resume in parts.items():
        _killed_where(_start(tmp_path / "broken", *resume), run, pattern)
    _ends(_start(tmp_path / "broken", "run.resume=true"))
    assert _rows(run) == _rows(whole)
    summaries = [json.loads((each / "summary.json").read_text()) for each in (run, whole)]
    for name in ("steps", "reward_first", "reward_last", "reward_errors"):
        assert summaries[0][name] == summaries[1][name]
    mine, theirs = (load_file(each / "hf" / "model.safetensors") for each in (run, whole))
    assert all(torch.equal(mine[name], weight) for name, weight in theirs.items())
