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
