"""binding: the rewards that a config names, with their options and weights. Not their calls."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.config.schema import Reward
from hybridengine.rlhf.registry import nearest
from hybridengine.rlhf.rewards.loading import ARGUMENTS, function_name, load_function
from hybridengine.rlhf.rewards.registry import Returned, reward


@dataclass(frozen=True)
class Term:
    """One reward of a weighted sum; `function` is called with the four arguments by name.

    `libraries`: the modules that it imports when it is first called, LIBRARIES of its file.
    `compares`: whether it fails without a ground truth, NEEDS_GROUND_TRUTH of its file.
    """

    name: str
    weight: float
    function: Callable[..., Returned]
    libraries: tuple[str, ...]
    compares: bool


def check(config: Reward) -> None:
    """Loads all that a config names and starts nothing.

    Throws UsageError for unknown names, unknown and missing options, a function that does not load,
    a library that is not installed, names given twice, and weights that are not one for each.
    """
    bind_rewards(config)


def bind_rewards(config: Reward) -> list[Term]:
    """The terms of the sum, in order: reward.functions, then reward.function. Throws as `check`."""
    functions = {}
    for name in config.functions:
        if name in functions:
            raise UsageError(f"reward.functions names {name!r} twice. Name it once, with a weight.")
        functions[name] = reward.get(name)
    if config.function is not None:
        name = function_name(config.function)
        if name in functions:
            raise UsageError(
                f"reward.function and reward.functions both have a reward {name!r}. "
                f"Give the function another name."
            )
        functions[name] = load_function(config.function)
    _check_option_names(config, list(functions))
    return [
        Term(
            name,
            weight,
            _bind(name, function, config.options.get(name)),
            _libraries(function),
            bool(getattr(inspect.getmodule(function), "NEEDS_GROUND_TRUTH", False)),
        )
        for (name, function), weight in zip(functions.items(), _weights(config), strict=True)
    ]


def comparing_rewards(config: Reward) -> list[str]:
    """The names of the rewards that fail without a ground truth. Throws as `check`."""
    return [term.name for term in bind_rewards(config) if term.compares]


def _weights(config: Reward) -> list[float]:
    count = len(config.functions)
    weights = list(config.weights) or [1.0] * count
    if len(weights) != count:
        raise UsageError(
            f"reward.weights has {len(weights)} numbers for the {count} rewards of "
            f"reward.functions. Give one for each, or none."
        )
    if config.function is not None:
        weights.append(config.function_weight)
    for weight in weights:
        if not math.isfinite(weight):
            raise UsageError(f"a weight of a reward is {weight}. Give numbers.")
    return weights


def _check_option_names(config: Reward, names: Sequence[str]) -> None:
    for name in config.options:
        if name not in names:
            raise UsageError(
                f"reward.options has {name!r}, which is no reward of this run: it has "
                f"{', '.join(names) or 'none'}. Use {nearest(name, names)}, or leave it out."
            )


def _bind(name: str, function: Callable[..., Returned], options: Any) -> Callable[..., Returned]:
    if options is None:
        options = {}
    if not isinstance(options, Mapping):
        raise UsageError(
            f"reward.options.{name} is {options!r}. Give options by name, e.g. {{key: value}}."
        )
    known = _options_of(function)
    for option in options:
        if option not in known:
            raise UsageError(
                f"reward {name!r} has no option {option!r}: it takes {', '.join(known) or 'none'}. "
                + (f"Use {nearest(option, known)}." if known else "Leave it out.")
            )
    for option, parameter in known.items():
        if parameter.default is parameter.empty and option not in options:
            raise UsageError(
                f"reward {name!r} needs option {option!r}. Set reward.options.{name}.{option}."
            )
    return functools.partial(function, **options)


def _libraries(function: Callable[..., Returned]) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(inspect.getmodule(function), "LIBRARIES", ())
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UsageError(
                f"a reward needs the module {name}, which is not installed. "
                f"Install it: pip install 'hybridengine[rlhf]' has those of the built-in rewards."
            )
    return tuple(names)


def _options_of(function: Callable[..., Returned]) -> dict[str, inspect.Parameter]:
    """What a reward takes besides the four arguments that it is called with."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters
    return {n: p for n, p in parameters.items() if p.kind in kinds and n not in ARGUMENTS}
