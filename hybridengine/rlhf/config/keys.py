"""keys: the schema as a flat table, from dotted name to type, default and bounds.

What reads, checks and prints a config goes through this table. It knows no values.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hybridengine.rlhf.config.fields import Key, is_key, key_of
from hybridengine.rlhf.config.meanings import meant_key
from hybridengine.rlhf.config.schema import Config

# What a value of each type is called in errors and in the documentation.
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list[str]: "a list of texts",
    list[float]: "a list of numbers",
    list[int]: "a list of whole numbers",
    dict[str, Any]: "a mapping",
}


@dataclass(frozen=True)
class Entry:
    """A key. `kind` is its type without None, `optional` whether null is a value of it."""

    name: str
    kind: Any
    optional: bool
    default: Any
    key: Key

    @property
    def section(self) -> str:
        """The dotted name of its section; "" for keys outside of any."""
        return self.name.rpartition(".")[0]

    @property
    def is_mapping(self) -> bool:
        """Whether its value has keys of its own, which the schema does not know."""
        return bool(self.kind == dict[str, Any])

    @property
    def words(self) -> str:
        """What it accepts, less its bounds: "a number or null"."""
        if self.key.choices:
            return either((*self.key.choices, *(["null"] if self.optional else [])))
        return _WORDS[self.kind] + (" or null" if self.optional else "")

    @property
    def accepts(self) -> str:
        """All of it: "a number above 0, or null"."""
        if not self.bounds:
            return self.words
        return f"{_WORDS[self.kind]} {self.bounds}" + (", or null" if self.optional else "")

    @property
    def bounds(self) -> str:
        """Its bounds in words, "from 0 to 1", "above 0 and at most 1"; "" without any."""
        key = self.key
        if key.least is not None and key.most is not None:
            return f"from {key.least:g} to {key.most:g}"
        limits = (("at least", key.least), ("above", key.above), ("at most", key.most))
        return " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)


@functools.cache
def entries() -> dict[str, Entry]:
    """Every key by its dotted name, in order of the schema."""
    return {entry.name: entry for entry in _walk(Config, "")}


@functools.cache
def sections() -> dict[str, str]:
    """The line of help of every section by its dotted name, in order of the schema."""
    return dict(_walk_sections(Config, ""))


def similar_keys(name: str) -> list[str]:
    """The keys that someone who wrote `name` may have meant, likeliest first; may be empty.

    What other trainers call a key counts most, then a last part that is a key of other sections,
    then similar spelling.
    """
    leaf = name.rpartition(".")[2]
    known = list(entries())
    meant = meant_key(name, known)
    if meant is not None:
        return [meant]
    same_leaf = [key for key in known if key.rpartition(".")[2] == leaf]
    if same_leaf:
        top = name.partition(".")[0] + "."
        similar = difflib.get_close_matches(name, same_leaf, n=1, cutoff=0.75)
        in_section = similar or [key for key in same_leaf if key.startswith(top)]
        return in_section if "." in name and in_section else same_leaf
    section = name.rpartition(".")[0]
    if section not in sections():
        similar = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        return similar or _by_leaf(leaf, known, 0.75)
    inside = [key for key in known if key.rpartition(".")[0] == section]
    return _by_leaf(leaf, inside, 0.8) or _by_leaf(leaf, known, 0.8) or _by_leaf(leaf, inside, 0.6)


def either(names: typing.Sequence[str]) -> str:
    """ "a, b or c"."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _by_leaf(leaf: str, known: list[str], cutoff: float) -> list[str]:
    """The key whose last part is most like `leaf`, if one is as like it as `cutoff` of 1."""
    leaves = {key.rpartition(".")[2]: key for key in known}
    return [leaves[match] for match in difflib.get_close_matches(leaf, leaves, n=1, cutoff=cutoff)]


def _walk(kind: type, prefix: str) -> Iterator[Entry]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if not is_key(field):
            continue
        name, hint = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from _walk(typing.cast(type, hint), name + ".")
            continue
        optional = isinstance(hint, types.UnionType)
        if optional:
            (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        yield Entry(name, hint, optional, default, key_of(field))


def _walk_sections(kind: type, prefix: str) -> Iterator[tuple[str, str]]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            name = prefix + field.name
            yield name, key_of(field).help
            yield from _walk_sections(hints[field.name], name + ".")
