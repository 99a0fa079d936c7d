"""loading: from arguments to a `Config`, and from a `Config` to YAML.

Later wins: defaults, preset, YAML file, overrides KEY=VALUE. A mapping (model.config, ...) is
replaced as a whole; an override of one of its entries, model.config.hidden_size=32, changes that.
Values may refer to others, ${actor.lr}, as OmegaConf resolves them.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hybridengine._core import UsageError
from hybridengine.rlhf.config.checks import combination_faults, pair_faults
from hybridengine.rlhf.config.describe import annotated_yaml
from hybridengine.rlhf.config.faults import value_faults
from hybridengine.rlhf.config.keys import entry_of
from hybridengine.rlhf.config.presets import DEMO, NONE, PRESETS
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.config.settings import (
    COMMAND_LINE,
    Setting,
    Settings,
    read_file,
    read_overrides,
)

# A key as a sentence names it.
_KEY = re.compile(r"[a-z_]+(?:\.\w+)*")

# Where one of these is given, no preset is taken unless it is named.
_OWN = ("model.path", "model.config", "data.train_files")


def load_config(arguments: Sequence[str]) -> Config:
    """The config that `arguments` give: the path of a YAML file, if any, then KEY=VALUE.

    The preset is demo where nothing names another: no file, no key `preset`, no model and no data
    of one's own. Throws UsageError in one line that names every fault with its key and place, the
    first one first.
    """
    return _load(arguments, DEMO, combination_faults)


def load_pairs_config(arguments: Sequence[str]) -> Config:
    """As `load_config`, for fitting a reward model to pairs: no preset unless it is named."""
    return _load(arguments, NONE, pair_faults)


def save_config(config: Config, path: str | os.PathLike[str]) -> None:
    """Writes every key with its line of help; `load_config([path])` gives an equal config."""
    Path(path).write_text(annotated_yaml(config), encoding="utf-8")


def _load(
    arguments: Sequence[str], preset: str, combinations: Callable[[Config], list[str]]
) -> Config:
    """The config, once `combinations` finds no fault in it. `preset` is that of an empty command
    line."""
    settings, has_file = _read(arguments)
    name = settings.value_of("preset") or (NONE if has_file or _has_own(settings) else preset)
    layers = [Setting("preset", (), name, "preset")]
    values = PRESETS.get(name, {})
    layers += [Setting(key, (), value, "preset") for key, value in values.items()]
    config = _checked(_resolved([*layers, *settings.found]), settings)
    _stop_on([fault + _lines_of(fault, settings) for fault in combinations(config)])
    return config


def _checked(values: dict[str, Any], settings: Settings) -> Config:
    """Throws UsageError with all that could not be set and all that is refused, as it was set."""
    faults = list(settings.faults)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        found = value_faults(error, values, lambda name: settings.last(name)[1])
        faults += [(settings.last(name)[0], fault) for name, fault in found.items()]
    _stop_on([fault for _, fault in sorted(faults, key=lambda each: each[0])])
    return config


def _lines_of(fault: str, settings: Settings) -> str:
    """A sentence with the lines of a file in which the keys that `fault` names were set."""
    names = _KEY.findall(fault)
    places = {each.name: each.place for each in settings.found}
    lines = [places[name] for name in dict.fromkeys(names) if name in places]
    of_file = [line for line in dict.fromkeys(lines) if line != COMMAND_LINE]
    return f" See {' and '.join(of_file)}." if of_file else ""


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
    return "=" not in argument and entry_of(argument) is None


def _resolved(settings: Sequence[Setting]) -> dict[str, Any]:
    """The values over the defaults. Throws UsageError for an interpolation."""
    values = Config().model_dump()
    for setting in settings:
        *above, last = (*setting.name.split("."), *setting.below)
        inner = values
        for part in above:
            if not isinstance(inner.get(part), dict):
                inner[part] = {}
            inner = inner[part]
        inner[last] = copy.deepcopy(setting.value)
    if any("${" in str(setting.value) for setting in settings):
        return _interpolated(values)
    return values


def _interpolated(values: dict[str, Any]) -> dict[str, Any]:
    """The values with what ${...} stands for in them."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UsageError(
            f"{error.full_key or 'a value'} cannot be resolved: {reason}. Correct the value, or "
            "write a backslash before ${ where it is meant as it is."
        ) from error
    assert isinstance(resolved, dict), "it is what was given"
    return {str(key): value for key, value in resolved.items()}


def _stop_on(faults: Sequence[str]) -> None:
    """Throws UsageError with all of them, if there are any."""
    if faults:
        raise UsageError(" Also: ".join(faults))
