"""meanings: which of our keys or values someone meant who wrote that of another trainer.

The names are those of other_names.yaml. A name is looked up by its last parts, the most parts
first: `actor_rollout_ref.actor.optim.lr` is found as `optim.lr`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from hybridengine.wording import nearest

# What names a file with the config elsewhere.
_FILE = ("config", "config_name", "config_path", "config_file", "config_dir")


@dataclass(frozen=True)
class OtherNames:
    """The table. `keys`: by our key, names by trainer (verl, trl, openrlhf, also) and `differs`;
    `absent`: by name, what is done instead; `values`: by the last part of our key, by our value,
    names. Names are parted by blanks."""

    keys: dict[str, dict[str, str]]
    absent: dict[str, str]
    values: dict[str, dict[str, str]]

    def ours(self) -> dict[str, str]:
        """Our key by each name."""
        return {
            name: key
            for key, row in self.keys.items()
            for who in ("verl", "trl", "openrlhf", "also")
            for name in row.get(who, "").split()
        }


@functools.cache
def other_names() -> OtherNames:
    text = Path(__file__).with_name("other_names.yaml").read_text(encoding="utf-8")
    return OtherNames(**yaml.safe_load(text))


@functools.cache
def _ours() -> dict[str, str]:
    return other_names().ours()


def meant_key(name: str, keys: Collection[str]) -> str | None:
    """That of `keys` which other trainers call `name`; None where none is known."""
    names = _ours()
    for end in _ends(name):
        ours = names.get(end)
        if ours is not None:
            return _of_role(ours, name, keys)
    return None


def instead_of(name: str) -> str | None:
    """What is done instead of what others set by `name`; None for a name that is not known."""
    whole = next(_ends(name))
    if whole in _FILE:
        return "a YAML file goes first, without an option or a key"
    parts = whole.split(".")
    absent = other_names().absent
    return next((absent[part] for part in reversed(parts) if part in absent), None)


def nearest_value(key: str, value: str, known: Iterable[str]) -> str:
    """Words for what to use instead of `value`, which the key `key` does not know."""
    known = list(known)
    spelled = value.lower().replace("_", "-")
    values = other_names().values.get(key.rpartition(".")[2], {})
    ours = next((own for own, names in values.items() if spelled in names.split()), None)
    if ours is None and spelled in known:
        ours = spelled
    if ours is None:
        return nearest(value, known)
    return repr(ours) + (", or another of these" if len(known) > 1 else "")


def _ends(name: str) -> Iterator[str]:
    """The name as others write it in a file or as a flag, then without its first parts."""
    parts = name.lower().lstrip("+-").replace("-", "_").split(".")
    for first in range(len(parts)):
        yield ".".join(parts[first:])


def _of_role(ours: str, name: str, keys: Collection[str]) -> str:
    """A key of `actor` as that of the role that `name` is of, where the role has it."""
    parts = name.lower().split(".")
    rest = ours.removeprefix("actor.")
    if rest == ours:
        return ours
    named = (("critic", "critic"), ("ref", "reference"), ("rollout", "rollout"))
    for part, role in (*named, ("reference", "reference"), ("reward_model", "reward_model")):
        if part in parts and f"{role}.{rest}" in keys:
            return f"{role}.{rest}"
    return ours
