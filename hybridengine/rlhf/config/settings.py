"""settings: what a YAML file and a command line set, key by key, each with its place.

A *setting* gives one key of the schema, or one entry below a key that holds a mapping, a value of
the right type. Bounds and combinations are checked later, on the whole.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from hybridengine._core import UsageError
from hybridengine.rlhf.config.keys import Entry, either, entries, sections, similar_keys
from hybridengine.rlhf.config.meanings import instead_of
from hybridengine.rlhf.config.presets import PRESETS
from hybridengine.rlhf.config.values import convert, entry_value
from hybridengine.rlhf.config.yaml_text import Place, compose, is_null, line, set_twice

COMMAND_LINE = "on the command line"

_DATA_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")

# More keys of a section than this are not listed in an error.
_MAX_LISTED = 10
_LISTS_ALL = "`hybridengine train --print-config`"


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
        """The last value that the key `name` was given as a whole; None if none."""
        given = [each.value for each in self.found if each.name == name and not each.below]
        return given[-1] if given else None


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
            settings.faults.append(str(error))
            continue
        if node is None:
            settings.faults.append(_no_value(name))
        elif isinstance(node, yaml.MappingNode) and _holds_keys(name):
            _read_mapping(node, name + ".", lambda _: COMMAND_LINE, settings)
        else:
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
    if argument in entries():
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
            settings.faults.append(set_twice(name, place, lines[name], line(key)))
        lines[name] = line(key)
        settings.read(name, value, place(line(key)))


def _leaves(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """(dotted name, node of its key, node of its value) of what lies below sections.

    A section without content, as where all of it is commented out, has none.
    """
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and _holds_keys(name):
            yield from _leaves(value, name + ".")
        elif name not in sections() or not is_null(value):
            yield name, key, value


def _holds_keys(name: str) -> bool:
    """Whether a mapping of this name is read as a section: it is one, or nothing that we know, as
    `actor_rollout_ref`, whose keys then say what was meant."""
    if name in sections():
        return True
    known = name in entries() or _mapping_above(name) is not None
    return not known and not similar_keys(name) and not _similar_sections(name)


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
    return f"{_no_key(name, section)} ({place}). {_mend(name, section)}"


def _no_key(name: str, section: str) -> str:
    if section in sections():
        return f"{name} is no key of section {section}"
    return f"{name} is no key" + (f": there is no section {section}" if section else "")


def _mend(name: str, section: str) -> str:
    """What to write instead of the key `name`, which `section` does not have."""
    instead = instead_of(name)
    if instead is not None:
        return f"Leave it out: {instead}."
    meant = similar_keys(name) or _similar_sections(name)
    if meant:
        return f"Use {either(meant)}."
    if section in sections():
        keys = [entry.name for entry in entries().values() if entry.section == section]
        return f"Use {_some_of(keys)}."
    return f"Use {_some_of(list(sections()))}." if section else f"{_LISTS_ALL} lists all."


def _some_of(names: Sequence[str]) -> str:
    """ "a, b or c"; of many the first ones, and how many more there are."""
    if len(names) <= _MAX_LISTED:
        return either(names)
    more = len(names) - _MAX_LISTED
    return f"{', '.join(names[:_MAX_LISTED])} or one of {more} more, which {_LISTS_ALL} lists"


def _similar_sections(name: str) -> list[str]:
    """The section as deep as `name` that is spelt much like it, if there is one."""
    as_deep = [section for section in sections() if section.count(".") == name.count(".")]
    return difflib.get_close_matches(name, as_deep, n=1, cutoff=0.75)
