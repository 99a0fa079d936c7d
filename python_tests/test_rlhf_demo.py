"""The demo and the examples, as a user starts them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.python, pytest.mark.slow, pytest.mark.soak]

_EXAMPLES = Path(__file__).parents[1] / "examples"


def _train(folder: Path, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hybridengine", "train", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_the_demo_learns(tmp_path: Path, seed: int) -> None:
    ended = _train(
        tmp_path, "run.name=ci", f"seed={seed}", "trainer.time_limit_s=180", timeout_s=300
    )
    assert ended.returncode == 0, ended.stderr
    folder = tmp_path / "runs" / "ci"
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    print(json.dumps(summary))
    assert summary["reward_first"] < 0.35
    assert summary["reward_last"] > 0.8
    assert summary["reshard_received_over_bound"] == 1.0
    assert summary["steps"] > 0
    assert summary["seconds"] < 200
    assert summary["reshard_share"] < 0.05
    for name in ("metrics.jsonl", "reward.png", "samples.jsonl", "hf/model.safetensors"):
        assert (folder / name).stat().st_size > 0
    assert list((folder / "tensorboard").iterdir())
    assert "runs/ci/reward.png" in ended.stdout


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a tiny model with a tokenizer of single characters."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from hybridengine.rlhf.data import character_tokenizer

    folder = tmp_path_factory.mktemp("tiny")
    config = Qwen2Config(
        vocab_size=128,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


def _steps(ended: subprocess.CompletedProcess[str], folder: Path) -> int:
    assert ended.returncode == 0, ended.stderr
    (run,) = (folder / "runs").iterdir()
    return int(json.loads((run / "summary.json").read_text())["steps"])


def test_the_example_of_word_problems(tmp_path: Path, tiny: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"prompt": f"{i} apples and {i} more?", "ground_truth": str(2 * i)} for i in range(8)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    ended = _train(
        tmp_path,
        str(_EXAMPLES / "ppo_math.yaml"),
        f"model.path={tiny}",
        f"data.train_files=[{tmp_path}/rows.parquet]",
        f"data.eval_files=[{tmp_path}/rows.parquet]",
        "data.train_batch_size=4",
        "data.max_response_length=8",
        "actor.ppo_mini_batch_size=2",
        "trainer.steps=2",
        timeout_s=200,
    )
    assert _steps(ended, tmp_path) == 2


def test_the_offline_example(tmp_path: Path, tiny: Path) -> None:
    rows = [
        {"prompt": f"{i}+1=", "response": str(i + k), "ground_truth": str(i + 1)}
        for i in range(8)
        for k in range(3)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended = _train(
        tmp_path,
        str(_EXAMPLES / "offline.yaml"),
        f"model.path={tiny}",
        f"data.train_files=[{tmp_path}/rows.jsonl]",
        "data.train_batch_size=4",
        "actor.ppo_mini_batch_size=2",
        timeout_s=200,
    )
    assert _steps(ended, tmp_path) == 4  # two epochs of eight prompts


def test_the_example_with_real_weights(tmp_path: Path) -> None:
    from hybridengine import UsageError
    from hybridengine.models.models import resolve

    try:
        resolve("smollm2-135m").open()
    except UsageError as error:
        pytest.skip(f"no weights of smollm2-135m: {error}")
    ended = _train(
        tmp_path,
        str(_EXAMPLES / "grpo_smollm2.yaml"),
        "trainer.steps=1",
        "data.eval_size=4",
        "trainer.save_hf=false",
        timeout_s=400,
    )
    assert _steps(ended, tmp_path) == 1
