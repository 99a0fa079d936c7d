"""settings: what a YAML file and a command line set, key by key, each with its place.

A *setting* gives one key of the models, or one entry below a key that holds a mapping, a value as
it is written. Types, bounds and combinations are checked later, on the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from hybridengine._core import UsageError
from hybridengine.rlhf.config.keys import Entry, entry_of, is_record, records
from hybridengine.rlhf.config.presets import PRESETS
from hybridengine.rlhf.config.unknown import holds_keys, is_section, unknown_key
from hybridengine.rlhf.config.yaml_text import (
    Place,
    compose,
    free_value,
    is_null,
    line,
    set_twice,
    text_value,
)

COMMAND_LINE = "on the command line"

_DATA_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")


@dataclass(frozen=True)
class Setting:
    """`name` is a key of the models; `below` the path of an entry within its mapping, if any."""

    name: str
    below: tuple[str, ...]
    value: Any
    place: str


@dataclass
class Settings:
    """Everything that was set, in order, and a sentence about everything that could not be."""

    found: list[Setting] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)  # with how many were read before

    def read(self, name: str, node: yaml.Node, place: str) -> None:
        """Takes in the value of the key `name`, or notes what is wrong with it."""
        try:
            self.found.append(_setting(name, node, place))
        except UsageError as error:
            self.refuse(str(error))

    def refuse(self, fault: str) -> None:
        self.faults.append((len(self.found), fault))

    def value_of(self, name: str) -> Any:
        """The last value that the key `name` was given as a whole; None if none."""
        given = [each.value for each in self.found if each.name == name and not each.below]
        return given[-1] if given else None

    def last(self, name: str) -> tuple[int, str]:
        """Which setting was the last one of the key `name`, or else within its section, from 0, and
        its place; -1 and "the default" where there is none."""
        section = name.rpartition(".")[0]
        own = [at for at, each in enumerate(self.found) if each.name == name]
        near = [
            at for at, each in enumerate(self.found) if f"{each.name}.".startswith(f"{section}.")
        ]
        if not own and not near:
            return -1, "the default"
        at = own[-1] if own else near[-1]
        return at, self.found[at].place


def read_file(path: Path, settings: Settings) -> None:
    """Adds what the YAML file sets. Throws UsageError if it cannot be read or is no mapping."""
    if path.suffix in _DATA_SUFFIXES:
        raise UsageError(f"{path} is data, not a config. Write data.train_files={path}.")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot read the config {path}: {error.strerror}. {_instead_of_file(path)}"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"cannot read the config {path}: byte {error.start} is not UTF-8. Save it as UTF-8."
        ) from error

    def place(number: int) -> str:
        return f"{path}:{number}"

    root = compose(text, place)
    if root is None or is_null(root):
        return
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{path} holds no keys. Write one `key: value` a line.")
    _read_mapping(root, "", place, settings)


def read_overrides(arguments: Sequence[str], settings: Settings) -> None:
    """Adds what arguments KEY=VALUE set; a later one wins. A mapping for a section sets the keys
    that it names, as in a file."""
    for argument in arguments:
        name, equals, text = argument.partition("=")
        try:
            if not equals or not name:
                raise UsageError(_not_an_override(argument))
            node = compose(text, _on_command_line(name))
        except UsageError as error:
            settings.refuse(str(error))
            continue
        if node is None:
            settings.refuse(_no_value(name))
        elif isinstance(node, yaml.MappingNode) and node.value and holds_keys(name):
            _read_mapping(node, name + ".", lambda _: COMMAND_LINE, settings)
        elif not _says_nothing(name, node):
            settings.read(name, node, COMMAND_LINE)


def _instead_of_file(path: Path) -> str:
    """What someone may have meant by a FILE that is none."""
    if path.is_dir():
        return f"Write model.path={path} for a model, or name a YAML file."
    if str(path) in PRESETS:
        return f"Write preset={path}."
    return "Name a YAML file that exists, or write KEY=VALUE."


def _on_command_line(name: str) -> Place:
    return lambda _: f"{name} {COMMAND_LINE}"


def _no_value(name: str) -> str:
    return (
        f"{name} has no value ({COMMAND_LINE}). Write {name}=VALUE; null is a value, and so is "
        "\"''\", the empty text."
    )


def _not_an_override(argument: str) -> str:
    if entry_of(argument) is not None:
        return _no_value(argument)
    if Path(argument).suffix in _DATA_SUFFIXES:
        return f"{argument!r} is data, not KEY=VALUE. Write data.train_files={argument}."
    if Path(argument).is_dir():
        return f"{argument!r} is a directory, not KEY=VALUE. Write model.path={argument}."
    return (
        f"{argument!r} is no override: it is not KEY=VALUE. A YAML file goes first, and there is "
        "one at most."
    )


def _read_mapping(node: yaml.MappingNode, prefix: str, place: Place, settings: Settings) -> None:
    lines: dict[str, int] = {}
    for name, key, value in _leaves(node, prefix):
        if name in lines:
            settings.refuse(set_twice(name, place, lines[name], line(key)))
        lines[name] = line(key)
        settings.read(name, value, place(line(key)))


def _leaves(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """(dotted name, node of its key, node of its value) of what lies below sections."""
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and value.value and holds_keys(name):
            yield from _leaves(value, name + ".")
        elif not _says_nothing(name, value):
            yield name, key, value


def _says_nothing(name: str, node: yaml.Node) -> bool:
    """Whether it is a section without content, as where all of it is commented out."""
    is_empty = is_null(node) or node.value == []
    return is_empty and is_section(name) and not is_record(name)


def _setting(name: str, node: yaml.Node, place: str) -> Setting:
    """Throws UsageError for an unknown key, and for what is no plain YAML."""
    entry = entry_of(name)
    if entry is not None:
        return Setting(name, (), _value(entry, node, place), place)
    empty = isinstance(node, yaml.MappingNode) or is_null(node)
    if empty and (name in records() or is_record(name)):
        return Setting(name, (), {}, place)  # no records, or one that lacks what must be given
    above = _mapping_above(name)
    if above is not None:
        below = tuple(name.removeprefix(above.name + ".").split("."))
        return Setting(above.name, below, free_value(name, node, place), place)
    raise UsageError(unknown_key(name, place))


def _value(entry: Entry, node: yaml.Node, place: str) -> Any:
    """Text as it is written: 007 is "007" where a key holds text; and one text is a list of it."""
    if entry.holds_text and not entry.is_list:
        return text_value(entry.name, node, place)
    if entry.holds_text and isinstance(node, yaml.SequenceNode):
        return [text_value(entry.name, each, place) for each in node.value]
    value = free_value(entry.name, node, place)
    meant_as_more = getattr(node, "style", None) is None and "," in str(value)
    if entry.holds_text and isinstance(value, str) and value and not meant_as_more:
        return value if "${" in value else [value]
    return value


def _mapping_above(name: str) -> Entry | None:
    """The key with a mapping in which `name` is an entry."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        entry = entry_of(".".join(parts[:end]))
        if entry is not None and entry.is_mapping:
            return entry
    return None
