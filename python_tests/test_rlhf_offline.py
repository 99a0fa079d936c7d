"""Offline runs go on where they stopped, and so do the files of rollouts that they read."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import rlhf_local_roles
from rich.console import Console
from rlhf_small_run import SMALL

from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.logging import Sinks
from hybridengine.rlhf.roles.tokenizer import open_tokenizer
from hybridengine.rlhf.trainer.checkpoints import Checkpoints
from hybridengine.rlhf.trainer.loop import Loop
from hybridengine.rlhf.trainer.run import _prepare
from hybridengine.rlhf.trainer.source import open_source
from hybridengine.rlhf.trainer.step import Steps

pytestmark = pytest.mark.python

_OFFLINE = [
    "data.mode=offline",
    "data.gym.name=null",
    "warmup.steps=0",
    "algorithm.advantage=grpo",
    "algorithm.kl.where=none",
    "trainer.ranks=1",
]


def _config(tmp_path: Path, rows: list[dict[str, Any]], *overrides: str) -> Config:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = f"data.train_files=[{tmp_path}/data.jsonl]"
    return load_config([*SMALL, *_OFFLINE, files, *overrides])


def _trained(config: Config, context: Any, folder: Path) -> Loop:
    """A run as `train` has it, on one rank of this process."""
    source = open_source(config, open_tokenizer(config))
    roles = rlhf_local_roles.local_roles(context, config)
    steps = Steps(config, roles)
    checkpoints = Checkpoints(folder, roles.saved(config), config.trainer.keep_checkpoints)
    loop = Loop(config, steps, source, checkpoints, began=time.monotonic())
    _prepare(config, steps, source, loop, Console(quiet=True))
    loop.run(Sinks([]))
    roles.reward.close()
    context.roles.clear()
    return loop


def _numbers(loop: Loop) -> list[dict[str, float]]:
    """Of all steps, but for times and rates."""
    rates = ("/tokens_per_second", "/flops_share")
    return [
        {k: v for k, v in each.items() if not k.startswith("time/") and not k.endswith(rates)}
        for each in loop.history
    ]


def test_a_resume_keeps_the_log_probs_that_the_run_began_with(tmp_path: Path) -> None:
    letters = "abcdefgh"
    rows = [{"prompt": prompt, "response": x * 2} for prompt in "?!" for x in letters]
    rows += [{"prompt": prompt, "response": x} for prompt in "?!" for x in letters]
    size = ["data.train_batch_size=2", "actor.ppo_mini_batch_size=2", "actor.lr=0.01"]
    whole = _config(tmp_path, rows, *size, "trainer.steps=4")
    first = _config(tmp_path, rows, *size, "trainer.steps=2", "trainer.save_interval=2")
    again = _config(tmp_path, rows, *size, "trainer.steps=4", "run.name=r", "run.resume=true")
    with rlhf_local_roles.one_rank(tmp_path) as context:
        unbroken = _trained(whole, context, tmp_path / "whole")
        _trained(first, context, tmp_path / "parts")
        resumed = _trained(again, context, tmp_path / "parts")
    assert _numbers(resumed) == _numbers(unbroken)
    # It is far from where it began, which the ratio is to.
    assert unbroken.history[3]["actor/ratio_max_error"] > 0.1


def test_a_resume_writes_no_response_twice(tmp_path: Path) -> None:
    run = [f"run.dir={tmp_path}", "run.name=r", "trainer.save_rollouts=true", "trainer.ranks=1"]
    saved = ["trainer.save_interval=1", "trainer.keep_checkpoints=2", "algorithm.advantage=rloo"]
    words = [*SMALL, *run, *saved, "warmup.steps=0", "trainer.eval_interval=0"]
    folder = tmp_path / "r"

    def rows() -> list[str]:
        return (folder / "rollouts" / "rank_0.jsonl").read_text().splitlines()

    with rlhf_local_roles.one_rank(tmp_path) as context:
        _trained(load_config(words), context, folder)
        unbroken = rows()
        shutil.rmtree(folder / "checkpoints" / "step_00000002")  # killed while it was written
        with (folder / "rollouts" / "rank_0.jsonl").open("a") as file:
            file.write(unbroken[0][:20])
        _trained(load_config([*words, "run.resume=true"]), context, folder)
    assert rows() == unbroken
    assert sorted(json.loads(row)["sample_id"] for row in unbroken) == list(range(40))
