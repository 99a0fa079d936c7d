"""binding: the rewards that a config names, with their options and weights. Not their calls."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.config.schema import Reward
from hybridengine.rlhf.plugins import referred_name
from hybridengine.rlhf.rewards.loading import ARGUMENTS, KEY, load_function
from hybridengine.rlhf.rewards.registry import Returned, reward
from hybridengine.wording import nearest


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

    Throws UsageError for unknown and missing options, a function that does not load, a library that
    is not installed, and a function of one's own with the name of another reward.
    """
    bind_rewards(config)


def bind_rewards(config: Reward) -> list[Term]:
    """The terms of the sum, in order: reward.functions, then reward.function. Throws as `check`."""
    functions: dict[str, Callable[..., Returned]] = {}
    functions.update((name, reward.get(name)) for name in config.functions)
    if config.function is not None:
        name = referred_name(config.function, KEY)
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
    weights = list(config.weights) or [1.0] * len(config.functions)
    return weights if config.function is None else [*weights, config.function_weight]


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
