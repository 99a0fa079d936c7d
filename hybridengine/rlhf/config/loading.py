"""loading: from arguments to a `Config`, and from a `Config` to YAML.

Later wins: defaults, preset, YAML file, overrides KEY=VALUE. A mapping (model.config, ...) is
replaced as a whole; an override of one of its entries, model.config.hidden_size=32, changes that.
Values may refer to others, ${actor.lr}, as OmegaConf resolves them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hybridengine._core import UsageError
from hybridengine.rlhf.config.checks import combination_faults, pair_faults
from hybridengine.rlhf.config.describe import annotated_yaml, value_at
from hybridengine.rlhf.config.keys import entries
from hybridengine.rlhf.config.presets import DEMO, NONE, PRESETS
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.config.settings import (
    Setting,
    Settings,
    read_file,
    read_overrides,
)
from hybridengine.rlhf.config.values import bounds_fault

# Where one of these is given, no preset is taken unless it is named.
_OWN = ("model.path", "model.config", "data.train_files")


def load_config(arguments: Sequence[str]) -> Config:
    """The config that `arguments` give: the path of a YAML file, if any, then KEY=VALUE.

    The preset is demo where nothing names another: no file, no key `preset`, no model and no data
    of one's own. Throws UsageError in one line that names every fault with its key and place, the
    first one first.
    """
    config = _load(arguments, DEMO)
    _stop_on(combination_faults(config))
    return config


def load_pairs_config(arguments: Sequence[str]) -> Config:
    """As `load_config`, for fitting a reward model to pairs: no preset unless it is named."""
    config = _load(arguments, NONE)
    _stop_on(pair_faults(config))
    return config


def to_dict(config: Config) -> dict[str, Any]:
    """Sections as nested dicts, every key in them."""
    return dataclasses.asdict(config)


def save_config(config: Config, path: str | os.PathLike[str]) -> None:
    """Writes every key with its line of help; `load_config([path])` gives an equal config."""
    Path(path).write_text(annotated_yaml(config), encoding="utf-8")


def _load(arguments: Sequence[str], preset: str) -> Config:
    """The config, each of its values within bounds. `preset` is that of an empty command line."""
    settings, has_file = _read(arguments)
    name = settings.value_of("preset") or (NONE if has_file or _has_own(settings) else preset)
    layers = [Setting("preset", (), name, "preset")]
    values = PRESETS.get(name, {})
    layers += [Setting(key, (), value, "preset") for key, value in values.items()]
    config = _build([*layers, *settings.found])
    places = {setting.name: setting.place for setting in settings.found}
    _stop_on([*settings.faults, *_bounds_faults(config, places)])
    return config


def _read(arguments: Sequence[str]) -> tuple[Settings, bool]:
    """What the file, if there is one, and the overrides set; and whether there is a file."""
    settings = Settings()
    rest = list(arguments)
    has_file = bool(rest) and (os.path.exists(rest[0]) or _seems_a_file(rest[0]))
    if has_file:
        read_file(Path(rest.pop(0)), settings)
    read_overrides(rest, settings)
    return settings, has_file


def _has_own(settings: Settings) -> bool:
    """Whether a model or data are given, which are nothing to mix with those of a preset."""
    return any(settings.value_of(name) for name in _OWN)


def _seems_a_file(argument: str) -> bool:
    """Whether what does not exist was meant as a file, rather than as an override."""
    return "=" not in argument and argument not in entries()


def _build(settings: Sequence[Setting]) -> Config:
    """The config of these values over the defaults. Throws UsageError for an interpolation."""
    values: dict[str, Any] = {}
    for setting in settings:
        *above, last = (*setting.name.split("."), *setting.below)
        inner = values
        for part in above:
            if not isinstance(inner.get(part), dict):
                inner[part] = {}
            inner = inner[part]
        inner[last] = _copied(setting.value)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Config), values)
        built = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UsageError(
            f"{error.full_key or 'a value'} cannot be resolved: {reason}. Correct the value, or "
            "write a backslash before ${ where it is meant as it is."
        ) from error
    assert isinstance(built, Config), "a structured config becomes its own class"
    built.actor.optimizer.lr, built.critic.optimizer.lr = built.actor.lr, built.critic.lr
    return built


def _copied(value: Any) -> Any:
    """Mappings anew, so that an override of an entry does not change a preset."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value


def _bounds_faults(config: Config, places: dict[str, str]) -> list[str]:
    faults = []
    for name, entry in entries().items():
        fault = bounds_fault(entry, value_at(config, name), places.get(name, "the default"))
        if fault is not None:
            faults.append(fault)
    return faults


def _stop_on(faults: Sequence[str]) -> None:
    """Throws UsageError with all of them, if there are any."""
    if faults:
        raise UsageError(" Also: ".join(faults))
