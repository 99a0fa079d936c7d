"""keys: the models as a flat table, from dotted name to the field with its type and bounds.

What reads, checks and prints a config goes through this table. It knows no values. The keys of a
*record*, one of a mapping of sections, stand in it once, with NAME for the name that a user gives
the record: pools.NAME.ranks.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import annotated_types
from pydantic.fields import FieldInfo

from hybridengine.rlhf.config.fields import Named, Section
from hybridengine.rlhf.config.meanings import meant_key
from hybridengine.rlhf.config.schema import Config

RECORD = "NAME"

# What a value of each type is called in errors and in the documentation, one and several.
_WORDS: dict[Any, tuple[str, str]] = {
    bool: ("true or false", ""),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    dict[str, Any]: ("a mapping", ""),
}


@dataclass(frozen=True)
class Entry:
    """A key by its dotted name.

    `item`: the type of its value, or of each of a list. `marks`: what pydantic checks besides the
    type. `default`: None where the key is `required`. `optional`: whether null is a value of it.
    """

    name: str
    help: str
    default: Any
    required: bool
    optional: bool
    is_list: bool
    item: Any
    marks: tuple[Any, ...]

    @property
    def section(self) -> str:
        """The dotted name of its section; "" for keys outside of any."""
        return self.name.rpartition(".")[0]

    @property
    def is_mapping(self) -> bool:
        """Whether its value has keys of its own, which the models do not know."""
        return bool(self.item == dict[str, Any])

    @property
    def holds_text(self) -> bool:
        """Whether its value, or each of its list, is text as it is written."""
        return self.item is str or bool(self.choices)

    @property
    def choices(self) -> tuple[str, ...]:
        """The names that it takes; () for any text."""
        named = [mark.names for mark in self.marks if isinstance(mark, Named)]
        is_literal = typing.get_origin(self.item) is Literal
        return named[0] if named else typing.get_args(self.item) if is_literal else ()

    @property
    def takes_files(self) -> bool:
        """Whether path.py:name is a value of it, besides its choices."""
        return any(isinstance(mark, Named) for mark in self.marks)

    @property
    def words(self) -> str:
        """What it accepts, less its bounds: "a number or null"."""
        null = ["null"] if self.optional else []
        files = ["path.py:name"] if self.takes_files else []
        if self.choices:
            names = either((*self.choices, *files, *null))
            return f"a list of {names}" if self.is_list else names
        return either((self._kind, *null))

    @property
    def accepts(self) -> str:
        """All of it: "a number above 0, or null"."""
        if not self.bounds:
            return self.words
        return f"{self._kind} {self.bounds}" + (", or null" if self.optional else "")

    @property
    def bounds(self) -> str:
        """Its bounds in words, "from 0 to 1", "above 0 and at most 1"; "" without any."""
        least = self._bound(annotated_types.Ge, "ge")
        above = self._bound(annotated_types.Gt, "gt")
        most = self._bound(annotated_types.Le, "le")
        if least is not None and most is not None:
            return f"from {least:g} to {most:g}"
        limits = (("at least", least), ("above", above), ("at most", most))
        return " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)

    @property
    def _kind(self) -> str:
        one, several = _WORDS[self.item]
        return f"a list of {several}" if self.is_list else one

    def _bound(self, kind: type, name: str) -> float | None:
        marks = (mark for mark in self.marks if isinstance(mark, kind))
        return next((getattr(mark, name) for mark in marks), None)


@functools.cache
def entries() -> dict[str, Entry]:
    """Every key by its dotted name, in order of the models."""
    return {name: _entry(name, field) for name, field in _walk(Config, "") if not _inside(field)}


@functools.cache
def sections() -> dict[str, str]:
    """The line of help of every section and record by its dotted name, in order of the models."""
    found = ((name, field) for name, field in _walk(Config, "") if _inside(field))
    return {name: field.description or "" for name, field in found}


@functools.cache
def records() -> tuple[str, ...]:
    """The names of the mappings of records."""
    ending = f".{RECORD}"
    return tuple(name.removesuffix(ending) for name in sections() if name.endswith(ending))


def general(name: str) -> str:
    """`name` as it stands in the table: pools.train.ranks is pools.NAME.ranks."""
    first, *rest = name.split(".")
    return ".".join((first, RECORD, *rest[1:])) if first in records() and rest else name


def is_record(name: str) -> bool:
    """Whether it is one of a mapping of records: pools.train."""
    return general(name).endswith(f".{RECORD}")


def entry_of(name: str) -> Entry | None:
    """The key `name`, also one of a record; None where there is none."""
    found = entries().get(general(name))
    return None if found is None else dataclasses.replace(found, name=name)


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
    section = general(name).rpartition(".")[0]
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


def _entry(name: str, field: FieldInfo) -> Entry:
    item: Any = field.annotation
    marks = list(field.metadata)
    optional = typing.get_origin(item) in (types.UnionType, typing.Union)
    if optional:
        (item,) = (part for part in typing.get_args(item) if part is not type(None))
    is_list = typing.get_origin(item) is list
    if is_list:
        (item,) = typing.get_args(item)
    if typing.get_origin(item) is Annotated:
        item, *more = typing.get_args(item)
        marks += [mark for each in more for mark in getattr(each, "metadata", (each,))]
    default = None if field.is_required() else field.get_default()
    help_line, required = field.description or "", field.is_required()
    return Entry(name, help_line, default, required, optional, is_list, item, tuple(marks))


def _walk(kind: type[Section], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    """Sections and records with what is in them, each behind its own row, and keys."""
    for own_name, field in kind.model_fields.items():
        inside = _inside(field)
        name = prefix + own_name
        if inside is not None and inside is not field.annotation:
            name += f".{RECORD}"
        yield name, field
        if inside is not None:
            yield from _walk(inside, name + ".")


def _inside(field: FieldInfo) -> type[Section] | None:
    """The section that the field holds, or of which it holds records; None for a key."""
    for kind in (field.annotation, *typing.get_args(field.annotation)[1:]):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None
