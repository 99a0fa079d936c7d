"""scoring: the weighted sum of a config's rewards for a response, in the process that calls it.

Nothing here limits time or survives a crash: see processes.py.
"""

from __future__ import annotations

import importlib
import inspect
import math
import numbers
import reprlib
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hybridengine.command.visible import visible
from hybridengine.rlhf.config.schema import Reward
from hybridengine.rlhf.rewards.binding import Term, bind_rewards

if TYPE_CHECKING:
    import asyncio

# Characters of an exception's message that an error repeats.
_MESSAGE = 300


@dataclass(frozen=True)
class Item:
    """A response to score. Errors name it by `where` its sample was read from, or else by `sample`,
    its number."""

    data_source: str
    solution: str
    ground_truth: Any
    extra: Any
    sample: int
    where: str = ""

    def name(self) -> str:
        return f"{self.where or f'sample {self.sample}'} (data_source {self.data_source!r})"


@dataclass(frozen=True)
class Score:
    """`value`: the weighted sum. `parts`: each reward's own number by its name, and what else it
    returned as name/key. Where `error` is not None, value is 0 and there are no parts."""

    value: float
    parts: dict[str, float] = field(default_factory=dict)
    error: str | None = None


class Scorer:
    """The rewards of a config, loaded, with their options and weights."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self._terms = tuple(terms)
        self._loop: asyncio.Runner | None = None

    @staticmethod
    def from_config(config: Reward) -> Scorer:
        """Throws UsageError for what `check` refuses."""
        return Scorer(bind_rewards(config))

    def load_libraries(self) -> None:
        """Imports what the rewards would import at their first call, which may take a second."""
        for term in self._terms:
            for name in term.libraries:
                importlib.import_module(name)

    def __len__(self) -> int:
        """How many rewards are added up."""
        return len(self._terms)

    def score(self, items: Sequence[Item]) -> list[Score]:
        """One score for each item. A reward that fails makes the item's error."""
        return [self.score_one(item) for item in items]

    def score_one(self, item: Item) -> Score:
        total, parts = 0.0, {}
        for term in self._terms:
            try:
                returned = term.function(
                    data_source=item.data_source,
                    solution_str=item.solution,
                    ground_truth=item.ground_truth,
                    extra_info=item.extra,
                )
                numbers_of = _numbers(term.name, self._awaited(returned))
            except (Exception, SystemExit) as error:  # a user's code: whatever it raises is data
                return Score(0.0, error=f"{item.name()}: reward {term.name!r} {_describe(error)}")
            parts.update(numbers_of)
            total += term.weight * numbers_of[term.name]
        return Score(total, parts)

    def _awaited(self, returned: Any) -> Any:
        """What an async reward comes to. All run in one loop, to which what they keep open (the
        connections of a client) is bound."""
        if not inspect.iscoroutine(returned):
            return returned
        if self._loop is None:
            import asyncio

            self._loop = asyncio.Runner()
        return self._loop.run(returned)


class _BadReturn(Exception):
    """A reward returned no finite number."""


def _numbers(name: str, returned: Any) -> dict[str, float]:
    """The score under `name`, other numbers under name/key. Text that a reward adds is dropped."""
    if not isinstance(returned, Mapping):
        return {name: _finite(returned)}
    if "score" not in returned:
        raise _BadReturn(f"returned a dict without 'score': it has {', '.join(map(str, returned))}")
    numbers_of = {name: _finite(returned["score"])}
    for key, value in returned.items():
        if key != "score" and isinstance(value, numbers.Real):
            numbers_of[f"{name}/{key}"] = float(value)
    return numbers_of


def _finite(value: Any) -> float:
    """Of a number of Python or numpy, or a tensor without dims. Arrays are none, whatever their
    size."""
    try:
        if getattr(value, "ndim", 0) != 0:
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise _BadReturn(f"returned {reprlib.repr(value)}, not a number") from None
    if isinstance(value, str) or not math.isfinite(number):
        raise _BadReturn(f"returned {reprlib.repr(value)}, not a finite number")
    return number


def _describe(error: BaseException) -> str:
    """What a reward did, in one line."""
    if isinstance(error, _BadReturn):
        return visible(f"{error}.")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else ""
    message = visible(" ".join(str(error).split()))[:_MESSAGE]  # it may quote a response
    return f"raised {type(error).__name__}{place}: {message}"
