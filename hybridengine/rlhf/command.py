"""command: what `hybridengine train` and `train-reward` do, less the command line itself."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from hybridengine._core import UsageError

# Packages of the extra by module: those that a config needs, and those that a run needs besides.
_CONFIG_MODULES = {"omegaconf": "omegaconf", "pydantic": "pydantic", "yaml": "PyYAML"}
_RUN_MODULES = {
    "ray": "ray",
    "transformers": "transformers",
    "peft": "peft",
    "datasets": "datasets",
    "pyarrow": "pyarrow",
    "reasoning_gym": "reasoning-gym",
    "math_verify": "math-verify",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "matplotlib": "matplotlib",
}


def train(arguments: Sequence[str], *, dry: bool = False) -> int:
    """Trains by the config that `arguments` give, or with `dry` says what it would need; the exit
    code. Throws UsageError."""
    _require({**_CONFIG_MODULES, **_RUN_MODULES})
    from hybridengine.rlhf.config.loading import load_config
    from hybridengine.rlhf.model_files import check_models
    from hybridengine.rlhf.rewards import check

    config = load_config(arguments)
    check(config.reward)
    check_models(config)  # as the trainer does, whose import alone takes seconds
    _leave_lines_of_ranks_plain()
    from hybridengine.rlhf.trainer.run import train as run_trainer

    return run_trainer(config, ["hybridengine", "train", *arguments], dry=dry)


def train_reward(arguments: Sequence[str]) -> int:
    """Fits a reward model by the config that `arguments` give; the exit code. Throws UsageError."""
    _require({**_CONFIG_MODULES, **_RUN_MODULES})
    from hybridengine.rlhf.config.loading import load_pairs_config
    from hybridengine.rlhf.model_files import check_base_model

    config = load_pairs_config(arguments)
    check_base_model(config)  # as the trainer does, whose import alone takes seconds
    _leave_lines_of_ranks_plain()
    from hybridengine.rlhf.trainer.reward_run import train_reward as run_trainer

    return run_trainer(config, ["hybridengine", "train-reward", *arguments])


def print_config(arguments: Sequence[str]) -> str:
    """The whole config that `arguments` give, as commented YAML. Throws UsageError."""
    _require(_CONFIG_MODULES)
    from hybridengine.rlhf.config.describe import annotated_yaml
    from hybridengine.rlhf.config.loading import load_config

    return annotated_yaml(load_config(arguments))


def config_markdown() -> str:
    """The page docs/config.md. Throws UsageError."""
    _require(_CONFIG_MODULES)
    from hybridengine.rlhf.config import describe

    return describe.config_markdown()


def migrating_markdown() -> str:
    """The page docs/migrating.md. Throws UsageError."""
    _require(_CONFIG_MODULES)
    from hybridengine.rlhf.config import migrating

    return migrating.migrating_markdown()


def metrics_markdown() -> str:
    """The page docs/metrics.md. Throws UsageError."""
    _require(_CONFIG_MODULES)
    from hybridengine.rlhf.logging import metrics

    return metrics.metrics_markdown()


def check_config_modules() -> None:
    """Throws UsageError that names the packages that are missing of those that a config needs."""
    _require(_CONFIG_MODULES)


def _leave_lines_of_ranks_plain() -> None:
    """Ray colours what ranks write, and what it adds to lines that repeat, wherever they go. Where
    colours are not wanted they pass as they are. Must be called before Ray is imported."""
    from hybridengine.rlhf.logging.screen import wants_colors

    if not wants_colors(sys.stderr):
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")


def _require(modules: dict[str, str]) -> None:
    """Throws UsageError that names the packages that are missing; imports none."""
    missing = [
        package for module, package in modules.items() if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise UsageError(
            f"the trainer needs {', '.join(missing)}. pip install 'hybridengine[rlhf]'"
        )
