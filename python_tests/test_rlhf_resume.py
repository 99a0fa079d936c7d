"""A run that was killed and resumed leaves what an unbroken one leaves."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rlhf_one_process import IN_A_SAVE, IN_A_STEP, IN_AN_EXPORT, RunHost
from rlhf_small_run import SMALL

pytestmark = [pytest.mark.python, pytest.mark.slow]

_FOUR = [
    *SMALL,
    "trainer.ranks=1",
    "trainer.steps=4",
    "trainer.save_interval=2",
    "trainer.eval_interval=3",
    "run.name=run",
]
_MEASURED = ("/memory_share", "/tokens_per_second", "/flops_share")
_LORA = [
    *("actor.lora.enable=true", "actor.lora.rank=4", "actor.lora.dropout=0.5"),
    *("algorithm.advantage=grpo", "algorithm.kl_coef=0.1"),
]
_KL = ["algorithm.kl.controller=adaptive", "algorithm.kl.target=0.01", "algorithm.kl.horizon=50"]


@pytest.fixture(scope="module")
def host() -> Iterator[RunHost]:
    with RunHost() as host:
        yield host


def _run(host: RunHost, folder: Path, *more: str, killed: str = "", at_call: int = 0) -> list[str]:
    """What a run said that ended well, or was killed where it should."""
    code, said = host.run([*_FOUR, f"run.dir={folder}", *more], killed, at_call)
    assert code == (-signal.SIGKILL if killed else 0), said
    return said


def _rows(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without times, rates and shares of memory."""
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [
        {
            name: value
            for name, value in json.loads(line).items()
            if not name.startswith("time/") and not name.endswith(_MEASURED)
        }
        for line in lines
    ]


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "run" / "hf" / "model.safetensors")


def _summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return {
        name: found[name]
        for name in ("steps", "reward_first", "reward_last", "reward_errors", "seconds")
    }


def _offline(folder: Path) -> list[str]:
    texts = ["1", "23", "4 5", "678", "", "90 1"]
    rows = [
        {"prompt": f"{sum_} + 1 =", "response": text, "ground_truth": "2", "data_source": "sums"}
        for sum_ in range(13)
        for text in texts
    ]
    file = folder / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        *("data.gym.name=null", f"data.train_files=[{file}]", "data.mode=offline"),
        *("warmup.steps=0", "data.max_response_length=5", "algorithm.advantage=grpo"),
    ]


@pytest.mark.parametrize("kind", ["online", "lora", "offline"])
def test_a_run_that_is_killed_anywhere_ends_as_one_that_is_not(
    host: RunHost, tmp_path: Path, kind: str
) -> None:
    more = {"online": _KL, "lora": _LORA, "offline": _offline(tmp_path)}[kind]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    _run(host, whole, *more)
    last = 2 if kind == "online" else 1  # models that train: actor, and critic
    _run(host, broken, *more, killed=IN_A_STEP, at_call=4 * last)
    logged = [row["step"] for row in _rows(broken)]
    assert logged[-1] == 3  # one more than the checkpoint has
    resume = [*more, "run.resume=true"]
    _run(host, broken, *resume, killed=IN_A_SAVE, at_call=last)
    assert [path.name for path in (broken / "run" / "checkpoints").iterdir()].count(
        "step_00000002"
    ) == 1
    _run(host, broken, *resume, killed=IN_AN_EXPORT, at_call=1)
    assert not (broken / "run" / "hf").exists()
    assert not (broken / "run" / "summary.json").exists()
    _run(host, broken, *resume)
    assert _rows(broken) == _rows(whole)
    assert [row["step"] for row in _rows(whole) if "actor/loss" in row] == [1, 2, 3, 4]
    for name, weight in _weights(whole).items():
        assert torch.equal(_weights(broken)[name], weight), name
    ours, theirs = _summary(broken), _summary(whole)
    assert ours.pop("seconds") > 0 and theirs.pop("seconds") > 0
    assert ours == theirs
    for name in ("samples.jsonl", "reward.png"):
        mine, other = (folder / "run" / name for folder in (broken, whole))
        assert mine.read_bytes() == other.read_bytes(), name


def test_a_resume_takes_what_was_changed_and_refuses_what_must_stay(
    host: RunHost, tmp_path: Path
) -> None:
    more = _offline(tmp_path)
    _run(host, tmp_path, *more, "trainer.steps=2")
    kept = (tmp_path / "run" / "config.yaml").read_bytes()
    arguments = [*_FOUR, f"run.dir={tmp_path}", *more, "run.resume=true"]
    code, said = host.run([*arguments, "seed=5", "data.shuffle=false"])
    assert code == 2
    assert said == [
        f"error: run.resume=true, but {tmp_path}/run cannot go on from step 2 so: data.shuffle was "
        "true and is false: the checkpoint counts in its rows; seed was 0 and is 5: it has put the "
        "data in order and drawn samples. Give these keys the value from before, or start a new "
        "run with another run.name."
    ]
    assert (tmp_path / "run" / "config.yaml").read_bytes() == kept
    changed = ["actor.lr=5e-4", "algorithm.kl_coef=0.25", "actor.dtype=float32"]
    said = _run(host, tmp_path, *more, "run.resume=true", *changed)
    words = " ".join(" ".join(said).split())
    assert (
        "changed since step 2: actor.dtype float64 -> float32, actor.lr 0.001 -> 0.0005, "
        "algorithm.kl_coef 0.01 -> 0.25, trainer.steps 2 -> 4" in words
    )
    rows = {row["step"]: row for row in _rows(tmp_path)}
    assert [rows[step]["actor/lr"] for step in (2, 3, 4)] == [1e-3, 5e-4, 5e-4]
    assert [rows[step]["actor/kl_coef"] for step in (2, 3, 4)] == [0.01, 0.25, 0.25]
    assert _summary(tmp_path)["steps"] == 4
    assert next(iter(_weights(tmp_path).values())).dtype == torch.float32
