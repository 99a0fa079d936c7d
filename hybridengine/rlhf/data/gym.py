"""gym: samples that a reasoning-gym generator makes, each when it is asked for."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterable, Sequence
from typing import Any, overload

from hybridengine._core import UsageError
from hybridengine.rlhf.config.schema import Gym
from hybridengine.rlhf.data.samples import Sample
from hybridengine.wording import nearest

# Options of every generator that the config sets elsewhere.
_SET_ELSEWHERE = {"size": "data.gym.size", "seed": "seed"}


class GymDataset(Sequence[Sample]):
    """`size` samples; sample i depends on generator, options and seed + i alone.

    ground_truth and response are the generator's answer, data_source its name, extra the whole
    entry {question, answer, metadata}, which its scorer needs.
    """

    def __init__(self, name: str, entries: Any, prompt_key: str, kind: str = "sample") -> None:
        """`kind`: how errors call a sample."""
        self._name, self._entries, self._prompt_key = name, entries, prompt_key
        self._kind = kind

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        index %= len(self)
        entry = self._entries[index]
        return Sample(
            index=index,
            prompt=_prompt(entry, self._prompt_key),
            response=entry["answer"],
            ground_truth=entry["answer"],
            data_source=self._name,
            extra=entry,
            where=f"{self._name}, {self._kind} {index}",
        )


def make_gym(gym: Gym, seed: int, kind: str = "sample") -> GymDataset:
    """The samples that `gym` describes. Ranges of seeds that overlap share samples. `kind`: how
    errors call a sample.

    `gym.prompt_key`: "question", a key of the entry's metadata, or a format such as
    "{expression} = " over the metadata and the question.

    Throws UsageError for an unknown generator, option or key, and for options that it refuses.
    """
    from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]

    if gym.name is None or gym.name not in DATASETS:
        raise UsageError(
            f"data.gym.name: reasoning-gym has no generator {gym.name!r}, among {len(DATASETS)}. "
            f"Use {nearest(str(gym.name), DATASETS)}."
        )
    make, settings = DATASETS[gym.name]
    known = [field.name for field in dataclasses.fields(settings)]
    _check_options(gym.name, gym.options, known)
    try:
        made = settings(**gym.options, size=gym.size, seed=seed)
        if hasattr(made, "validate"):
            made.validate()
        samples = GymDataset(gym.name, make(config=made), gym.prompt_key, kind)
        samples[0]
    except (AssertionError, TypeError, ValueError) as error:
        raise UsageError(
            f"data.gym.options: {gym.name} refuses {gym.options}: {error or 'no reason given'}. "
            f"Mend the values."
        ) from error
    return samples


def _check_options(name: str, options: Iterable[str], known: Sequence[str]) -> None:
    for option in options:
        if option in _SET_ELSEWHERE:
            raise UsageError(
                f"data.gym.options: {option!r} is not set here. Set {_SET_ELSEWHERE[option]}."
            )
        if option not in known:
            free = [key for key in known if key not in _SET_ELSEWHERE]
            raise UsageError(
                f"data.gym.options: {name} has no option {option!r}: it takes {', '.join(free)}. "
                f"Use {nearest(option, free)}."
            )


def _prompt(entry: dict[str, Any], key: str) -> str:
    """The prompt of an entry. Throws UsageError for a key that it lacks."""
    values = {**entry["metadata"], "question": entry["question"]}
    if key in values:
        return str(values[key])
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(key) if field is not None]
        if fields:
            return key.format(**values)
    except (KeyError, IndexError, ValueError, AttributeError):
        pass  # said below, with what there is
    raise UsageError(
        f"data.gym.prompt_key: {key!r} is neither a key nor a format over the keys "
        f"{', '.join(sorted(values))}. Use {nearest(key, values)}, or '{{question}}'."
    )
