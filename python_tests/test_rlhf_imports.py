"""What importing the trainer costs: nothing heavy until it is used."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.python

_HEAVY = ("ray", "vllm", "wandb", "peft", "datasets", "transformers", "reasoning_gym", "omegaconf")


@pytest.mark.parametrize(
    "module",
    [
        "hybridengine.rlhf",
        "hybridengine.rlhf.algorithms",
        "hybridengine.rlhf.batch",
        "hybridengine.rlhf.cli",
        "hybridengine.rlhf.config.schema",
        "hybridengine.rlhf.data",
        "hybridengine.rlhf.rewards",
        "hybridengine.rlhf.workers",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_used(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {_HEAVY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
