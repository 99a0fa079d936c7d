"""changes: what of its config a run may change when it is resumed.

Every key takes effect from the next step on but those that have had their effect already, on what
the checkpoint holds: changing one of these is an error. The config of a run is kept in each of its
checkpoints, as `flat` gives it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.trainer.checkpoints import newest_checkpoint, state_of, step_of

# Keys and sections that stay, and why.
_FIXED = {
    "seed": "it has put the data in order and drawn samples",
    "model": "the checkpoint has its weights, and counts in its tokens",
    "data": "the checkpoint counts in its rows",
    "warmup": "it is over",
    "actor.lora.enable": "the checkpoint has the weights",
    "actor.lora.rank": "the checkpoint has weights of that rank",
    "actor.lora.target_modules": "the checkpoint has the weights",
    "critic.path": "the checkpoint has its weights",
}
# Of those sections, what says nothing about the rows to train on.
_FREE = ("data.eval_files", "data.eval_size", "data.train_batch_size")
_FREE_ONLINE = ("data.max_response_length",)  # offline it says which rows are left out
# Where a run is and what its values were once made of.
_ASIDE = ("run", "preset")
# The keys that say whether a run has a role.
_KEYS_OF_ROLE = {
    "critic": ("algorithm.advantage",),
    "reference": ("algorithm.kl", "algorithm.kl_coef", "reference.path", "actor.lora.enable"),
}


def flat(config: Config) -> dict[str, Any]:
    """Every key by its dotted name, also those within a mapping, as JSON gives it back."""
    values = json.loads(json.dumps(config.model_dump(), default=str))
    return dict(_flattened(values, ""))


def check_unchanged(config: Config, folder: Path, roles: Sequence[str]) -> None:
    """Throws UsageError where a key of a run to go on differs that must not, and where its
    checkpoint lacks one of `roles`, which the config needs of it now."""
    newest = newest_checkpoint(folder)
    assert newest is not None, "a check came first"
    changed = _changed(config, newest)
    faults = [
        f"{key} was {_shown(then)} and is {_shown(now)}: {reason}"
        for key, (then, now) in changed.items()
        if (reason := _reason(key, config))
    ]
    faults += _lacking(roles, newest, changed)
    if faults:
        keys = "these keys" if len(faults) > 1 else "the key"
        raise UsageError(
            f"run.resume=true, but {folder} cannot go on from step {step_of(newest)} so: "
            f"{'; '.join(faults)}. Give {keys} the value from before, or start a new run with "
            "another run.name."
        )


def words_of_changes(config: Config, folder: Path) -> str:
    """The keys that take effect from here on, with both values; nothing where there are none."""
    newest = newest_checkpoint(folder)
    assert newest is not None, "a check came first"
    changed = _changed(config, newest)
    if not changed:
        return ""
    listed = ", ".join(f"{key} {_shown(a)} -> {_shown(b)}" for key, (a, b) in changed.items())
    return f"changed since step {step_of(newest)}: {listed}"


def _changed(config: Config, checkpoint: Path) -> dict[str, tuple[Any, Any]]:
    """Both values of the keys that differ, which are missing (None) within a mapping perhaps."""
    then: Mapping[str, Any] = state_of(checkpoint)["config"]
    now = flat(config)
    return {
        key: (then.get(key), now.get(key))
        for key in sorted({*then, *now})
        if then.get(key) != now.get(key) and not _within(key, _ASIDE)
    }


def _reason(key: str, config: Config) -> str:
    """Why it stays; nothing where it may change."""
    online = config.data.mode == "online"
    if key in _FREE or (online and key in _FREE_ONLINE):
        return ""
    return next((reason for fixed, reason in _FIXED.items() if _within(key, (fixed,))), "")


def _lacking(
    roles: Sequence[str], checkpoint: Path, changed: Mapping[str, tuple[Any, Any]]
) -> Iterator[str]:
    for role in roles:
        if not (checkpoint / role).is_dir():
            both = [
                f"{key} was {_shown(then)} and is {_shown(now)}"
                for key, (then, now) in changed.items()
                if _within(key, _KEYS_OF_ROLE.get(role, ()))
            ]
            yield f"{', '.join(both) or role}: the checkpoint has no {role}"


def _within(key: str, names: tuple[str, ...]) -> bool:
    """Whether it is one of `names`, or lies in one that is a section."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _flattened(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _shown(value: Any) -> str:
    """As one writes it in a config."""
    return value if isinstance(value, str) else json.dumps(value)
