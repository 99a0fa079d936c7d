"""faults: what pydantic refuses, as sentences with the key, its value, its place and the mend."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from hybridengine.rlhf.config.keys import Entry, entry_of
from hybridengine.rlhf.config.meanings import nearest_value
from hybridengine.rlhf.config.yaml_text import one_line

# Long values are cut in errors.
_MAX_SHOWN = 60

# Of values whose default is often empty.
_EXAMPLES = {str: "[a, b]", float: "[0.9, 0.99]", int: "[2, 3]"}

_BOUNDS = ("greater_than", "greater_than_equal", "less_than_equal")


def value_faults(
    error: ValidationError, values: Mapping[str, Any], place_of: Callable[[str], str]
) -> dict[str, str]:
    """By dotted name, a sentence about each key that is refused. `values`: the nested values that
    were checked; `place_of`: where a key was set."""
    faults: dict[str, str] = {}
    for each in error.errors(include_url=False, include_context=False):
        parts = [part for part in each["loc"] if isinstance(part, str)]
        name = ".".join(parts)
        entry = entry_of(name)
        if entry is None or name in faults:
            continue
        place = place_of(name)
        if each["type"] == "missing":
            record, _, leaf = name.rpartition(".")
            faults[name] = f"{record} has no {leaf} ({place}). Set {name} to {entry.accepts}."
        else:
            faults[name] = _sentence(entry, _at(values, parts), each, place)
    return faults


def _sentence(entry: Entry, value: Any, error: Mapping[str, Any], place: str) -> str:
    kind = error["type"]
    if kind == "literal_error":
        has = f"has {error['input']!r}" if entry.is_list else f"is {_shown(value)}"
        names = ", ".join(entry.choices)
        mend = nearest_value(entry.name, str(error["input"]), entry.choices)
        files = ", or path.py:name" if entry.takes_files else ""
        return f"{entry.name} {has}, not one of {names}{files} ({place}). Use {mend}."
    if kind in _BOUNDS:
        value = float(value) if entry.item is float and not entry.is_list else value
        return f"{entry.name} is {value}, not {entry.accepts} ({place}). {_mend(entry)}"
    if kind == "finite_number":
        return f"{entry.name} is {value}, not a finite number ({place}). {_mend(entry)}"
    if entry.is_list and entry.holds_text and isinstance(value, str) and "," in value:
        what = f"{entry.name} is {_shown(value)}, one text and not a list"
        return f"{what} ({place}). Use {entry.name}=[{value}]."
    return f"{entry.name} is {_shown(value)}, not {entry.words} ({place}). {_mend(entry)}"


def _mend(entry: Entry) -> str:
    """What to write instead, with an example where the default is one."""
    example = None if entry.default is None else one_line(entry.default)
    if entry.is_mapping:
        example = "{key: value}"
    elif entry.is_list and not entry.choices:
        example = _EXAMPLES[entry.item]
    return f"Use {entry.accepts}" + (f", e.g. {entry.name}={example}." if example else ".")


def _shown(value: Any) -> str:
    """The value as YAML has it: text in quotes, null and numbers as they are."""
    text = _cut_text(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _cut_text(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"[{', '.join(map(_cut_text, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def _at(values: Mapping[str, Any], parts: typing.Sequence[str]) -> Any:
    found: Any = values
    for part in parts:
        found = found[part]
    return found
