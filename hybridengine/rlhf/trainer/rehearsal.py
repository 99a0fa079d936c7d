"""rehearsal: what the end of a run does, tried before its first step.

What would fail after hours fails here in seconds: the picture, the export of everything but the
weights, and the room for what will be written.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from hybridengine._core import UsageError
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.trainer import artifacts
from hybridengine.rlhf.trainer.checkpoints import step_of, whole_checkpoints
from hybridengine.rlhf.trainer.folder import TRIAL, RunFolder
from hybridengine.rlhf.training.export import write_hf
from hybridengine.rlhf.training.models import empty_model, export_dtype, weight_dtype
from hybridengine.rlhf.training.state import line_of
from hybridengine.wording import human_bytes

_MOMENTS = 2  # of AdamW, each as large as the weights that train


def rehearse(config: Config, tokenizer: Any, folder: RunFolder) -> None:
    """For `hybridengine train`. Throws UsageError where the end would fail."""
    policy = empty_model(config.model, "policy")
    with tempfile.TemporaryDirectory(dir=folder.scratch, prefix=TRIAL) as scratch:
        artifacts.plot_rewards(Path(scratch) / "reward.png", [{"reward/mean": 0.0}], "a trial")
        if config.trainer.save_hf:
            _try_export(config, policy, tokenizer, Path(scratch))
    held, trained = num_weights(policy), num_weights(policy)
    if config.actor.lora.enable:
        trained = 0  # the adapters' are next to nothing
    if config.algorithm.advantage == "gae":
        critic = num_weights(empty_model(config.model, "value", config.critic.path))
        held, trained = held + critic, trained + critic
    if config.warmup.steps and config.reference.path is None:
        held += num_weights(policy)
    size, hf_size = weight_dtype(config.actor).itemsize, export_dtype(config, config.actor).itemsize
    check_room(
        config,
        folder,
        hf_bytes=num_weights(policy) * hf_size if config.trainer.save_hf else 0,
        checkpoint_bytes=(held + _MOMENTS * trained) * size if config.trainer.save_interval else 0,
    )


def rehearse_reward(config: Config, tokenizer: Any, folder: RunFolder) -> None:
    """For `hybridengine train-reward`. Throws UsageError where the end would fail."""
    model = empty_model(config.model, "classifier")
    nothing = {"reward_model/loss": 0.0, "reward_model/accuracy": 0.0}
    with tempfile.TemporaryDirectory(dir=folder.scratch, prefix=TRIAL) as scratch:
        artifacts.plot_fit(Path(scratch) / "accuracy.png", [nothing], "a trial")
        _try_export(config, model, tokenizer, Path(scratch))
    hf_bytes = num_weights(model) * export_dtype(config, config.critic).itemsize
    size = weight_dtype(config.critic).itemsize if config.trainer.save_interval else 0
    checkpoint_bytes = num_weights(model) * size * (1 + _MOMENTS)
    check_room(config, folder, hf_bytes=hf_bytes, checkpoint_bytes=checkpoint_bytes)


def num_weights(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def check_room(config: Config, folder: RunFolder, *, hf_bytes: int, checkpoint_bytes: int) -> None:
    """Throws UsageError unless there is room for hf/ and the checkpoints that a run keeps, and one
    more, which is written before the oldest goes."""
    there = whole_checkpoints(folder.path) if config.run.resume else []
    count = max(config.trainer.keep_checkpoints + 1 - len(there), 1)
    if there and step_of(there[-1]) == config.trainer.steps:
        count = 0  # it is resumed for its export alone
    needed = hf_bytes + count * checkpoint_bytes
    disk = shutil.disk_usage(folder.scratch)
    if disk.total == 0 or needed <= disk.free:  # some network mounts tell nothing
        return
    parts = [f"{human_bytes(hf_bytes)} of hf/"] if hf_bytes else []
    if count * checkpoint_bytes:
        parts.append(f"{count} checkpoints of {human_bytes(checkpoint_bytes)}")
    raise UsageError(
        f"{folder.path} has room for {human_bytes(disk.free)}, and the run will write "
        f"{' and '.join(parts)}. Free some, or set run.dir to another disk"
        f"{', or trainer.keep_checkpoints to less' if count * checkpoint_bytes else ''}."
    )


def _try_export(config: Config, module: Any, tokenizer: Any, scratch: Path) -> None:
    try:
        write_hf(module, tokenizer, scratch)
    except Exception as error:  # whatever a model's files make a library raise
        source = config.model.path if config.model.path is not None else "model.config"
        raise UsageError(
            f"{source} cannot be exported, which is the end of a run: {line_of(error)}. Mend its "
            "generation_config.json or config.json, or set trainer.save_hf=false."
        ) from None
