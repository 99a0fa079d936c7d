"""settings: what a YAML file and a command line set, key by key, each with its place.

A *setting* gives one key of the schema, or one entry below a key that holds a mapping, a value of
the right type. Bounds and combinations are checked later, on the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from hybridengine._core import UsageError
from hybridengine.rlhf.config.keys import Entry, either, entries, sections, similar_keys
from hybridengine.rlhf.config.values import convert, entry_value
from hybridengine.rlhf.config.yaml_text import Place, compose, is_null, line, set_twice

COMMAND_LINE = "on the command line"

# More keys of a section than this are not listed in an error.
_MAX_LISTED = 10


@dataclass(frozen=True)
class Setting:
    """`name` is a key of the schema; `below` the path of an entry within its mapping, if any."""

    name: str
    below: tuple[str, ...]
    value: Any
    place: str


@dataclass
class Settings:
    """Everything that was set, in order, and a sentence about everything that could not be."""

    found: list[Setting] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def read(self, name: str, node: yaml.Node, place: str) -> None:
        """Takes in the value of the key `name`, or notes what is wrong with it."""
        try:
            self.found.append(_setting(name, node, place))
        except UsageError as error:
            self.faults.append(str(error))

    def value_of(self, name: str) -> Any:
        """The last value that the key `name` was given; None if none."""
        given = [setting.value for setting in self.found if setting.name == name]
        return given[-1] if given else None


def read_file(path: Path, settings: Settings) -> None:
    """Adds what the YAML file sets. Throws UsageError if it cannot be read or is no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot read the config {path}: {error.strerror}. Name a YAML file that exists, or "
            "write KEY=VALUE."
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
    lines: dict[str, int] = {}
    for name, key, node in _leaves(root, ""):
        if name in lines:
            settings.faults.append(set_twice(name, place, lines[name], line(key)))
        lines[name] = line(key)
        settings.read(name, node, place(line(key)))


def read_overrides(arguments: Sequence[str], settings: Settings) -> None:
    """Adds what arguments KEY=VALUE set; a later one wins."""
    for argument in arguments:
        name, equals, text = argument.partition("=")
        try:
            if not equals or not name:
                raise UsageError(_not_an_override(argument))
            node = compose(text, _on_command_line(name))
        except UsageError as error:
            settings.faults.append(str(error))
            continue
        if node is None:
            settings.faults.append(_no_value(name))
        else:
            settings.read(name, node, COMMAND_LINE)


def _on_command_line(name: str) -> Place:
    return lambda _: f"{name} {COMMAND_LINE}"


def _no_value(name: str) -> str:
    return (
        f"{name} has no value ({COMMAND_LINE}). Write {name}=VALUE; null is a value, and so is "
        "\"''\", the empty text."
    )


def _not_an_override(argument: str) -> str:
    if argument in entries():
        return _no_value(argument)
    return (
        f"{argument!r} is no override: it is not KEY=VALUE. A YAML file goes first, and there is "
        "one at most."
    )


def _leaves(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """(dotted name, node of its key, node of its value) of what lies below sections.

    A section without content, as where all of it is commented out, has none.
    """
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if name not in sections():
            yield name, key, value
        elif isinstance(value, yaml.MappingNode):
            yield from _leaves(value, name + ".")
        elif not is_null(value):
            yield name, key, value


def _setting(name: str, node: yaml.Node, place: str) -> Setting:
    """Throws UsageError for an unknown key or another type."""
    entry = entries().get(name)
    if entry is not None:
        return Setting(name, (), convert(entry, node, place), place)
    above = _mapping_above(name)
    if above is not None:
        below = tuple(name.removeprefix(above.name + ".").split("."))
        return Setting(above.name, below, entry_value(name, node, place), place)
    raise UsageError(_unknown(name, place))


def _mapping_above(name: str) -> Entry | None:
    """The key with a mapping in which `name` is an entry."""
    for entry in entries().values():
        if entry.is_mapping and name.startswith(entry.name + "."):
            return entry
    return None


def _unknown(name: str, place: str) -> str:
    """A sentence about a key that the schema does not have."""
    if name in sections():
        keys = [entry.name for entry in entries().values() if entry.section == name]
        return f"{name} is a section, not a key ({place}). Set its keys, e.g. {keys[0]}."
    section = name.rpartition(".")[0]
    if section in entries():
        entry = entries()[section]
        return f"{name} is no key: {section} is {entry.words} ({place}). Set {section} itself."
    meant = similar_keys(name)
    if section in sections():
        keys = [entry.name for entry in entries().values() if entry.section == section]
        mend = either(meant or keys[:_MAX_LISTED])
        return f"{name} is no key of section {section} ({place}). Use {mend}."
    if section:
        mend = f"Use {either(meant or list(sections())[:_MAX_LISTED])}."
        return f"{name} is no key: there is no section {section} ({place}). {mend}"
    mend = f"Use {either(meant)}." if meant else "`hybridengine train --print-config` lists all."
    return f"{name} is no key ({place}). {mend}"
