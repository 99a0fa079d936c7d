"""What importing the trainer costs: nothing heavy until it is used."""

import ast
import subprocess
import sys
from pathlib import Path

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


def test_the_config_reaches_up_into_nothing_of_the_trainer() -> None:
    """Names and checks are its own, so that rewards, logging and roles may import it."""
    folder = Path(__file__).parents[1] / "hybridengine" / "rlhf" / "config"
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            room = (module or "").removeprefix("hybridengine.rlhf.").partition(".")[0]
            if module is not None and module.startswith("hybridengine.rlhf"):
                assert room in ("config", "plugins"), f"{path.name} imports {module}"
