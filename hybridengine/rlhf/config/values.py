"""values: from a YAML node to the value of a key, by the type and bounds of the key.

The type decides: 007 is the text "007" for a key that holds text. No value is converted silently
besides a whole number to a number, and one text to a list of it.
"""

from __future__ import annotations

import math
from typing import Any, get_args, get_origin

import yaml  # type: ignore[import-untyped]

from hybridengine._core import UsageError
from hybridengine.rlhf.config.keys import Entry
from hybridengine.rlhf.config.meanings import nearest_value
from hybridengine.rlhf.config.yaml_text import is_null, one_line, plain

# What OmegaConf takes for a value that is not there; it would fall back to the default.
_MISSING = "???"

# Long values are cut in errors.
_MAX_SHOWN = 60

# Of values whose default is often empty.
_EXAMPLES = {
    str(list[str]): "[a, b]",
    str(list[float]): "[0.9, 0.99]",
    str(list[int]): "[2, 3]",
    str(dict[str, Any]): "{key: value}",
}


def convert(entry: Entry, node: yaml.Node, place: str) -> Any:
    """The value of `node` for the key `entry`; an interpolation, ${...}, is passed on as text.

    Throws UsageError if it has another type. Bounds are left to `bounds_fault`, since they hold for
    what interpolations stand for too.
    """
    if is_null(node):
        if entry.optional:
            return None
        raise UsageError(_type_fault(entry, "null", place))
    if isinstance(node, yaml.ScalarNode) and "${" in node.value:
        return node.value
    if entry.is_mapping and isinstance(node, yaml.MappingNode):
        return entry_value(entry.name, node, place)
    try:
        return _by_kind(entry.kind, node)
    except (ValueError, OverflowError, yaml.YAMLError):
        if entry.kind == list[str] and _has_commas(node):
            shown = f"{entry.name} is {_shown_node(node)}, one text and not a list"
            raise UsageError(f"{shown} ({place}). Use {entry.name}=[{node.value}].") from None
        raise UsageError(_type_fault(entry, _shown_node(node), place)) from None


def entry_value(name: str, node: yaml.Node, place: str) -> Any:
    """The value of `node` for the key `name` inside of a mapping, where anything goes."""
    try:
        return _free(node)
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{name} cannot be read ({place}): {reason}. Write plain YAML.") from error


def bounds_fault(entry: Entry, value: Any, place: str) -> str | None:
    """A sentence about why `value` is outside of what `entry` accepts; None if it is not."""
    key = entry.key
    if value is None:
        return None
    if key.choices and value not in key.choices:
        return (
            f"{entry.name} is {value!r}, not one of {', '.join(key.choices)} ({place}). "
            f"Use {nearest_value(entry.name, value, key.choices)}."
        )
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        if isinstance(number, float) and not math.isfinite(number):
            return f"{entry.name} is {value}, not a finite number ({place}). {_mend(entry)}"
        if isinstance(value, (int, float)) and _outside(entry, number):
            return f"{entry.name} is {value}, not {entry.accepts} ({place}). {_mend(entry)}"
    return None


def _outside(entry: Entry, number: float) -> bool:
    key = entry.key
    return (
        (key.least is not None and number < key.least)
        or (key.above is not None and number <= key.above)
        or (key.most is not None and number > key.most)
    )


def _by_kind(kind: Any, node: yaml.Node) -> Any:
    """Throws ValueError if `node` is not of this kind."""
    if kind is str:
        if not isinstance(node, yaml.ScalarNode) or is_null(node) or node.value == _MISSING:
            raise ValueError
        return node.value
    if get_origin(kind) is list:
        if kind == list[str] and _is_one_text(node):
            return [node.value]
        if not isinstance(node, yaml.SequenceNode):
            raise ValueError
        return [_by_kind(get_args(kind)[0], item) for item in node.value]
    value = plain(node)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        raise ValueError
    return value


def _is_one_text(node: yaml.Node) -> bool:
    """Whether it stands for a list of itself. Commas without quotes are meant as a list of more."""
    if not isinstance(node, yaml.ScalarNode) or not node.tag.endswith(":str"):
        return False
    return node.value not in ("", _MISSING) and not _has_commas(node)


def _has_commas(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and "," in node.value


def _free(node: yaml.Node) -> Any:
    """Any plain value. Throws ValueError in words for others."""
    if isinstance(node, yaml.SequenceNode):
        return [_free(item) for item in node.value]
    if not isinstance(node, yaml.MappingNode):
        value = plain(node)
        if value == _MISSING:
            raise ValueError(f"{_MISSING} stands for a missing value")
        if isinstance(value, (str, int, float, type(None))):
            return value
        raise ValueError(f"{node.value!r} is a {type(value).__name__}")
    for key, value in node.value:
        if is_null(value) and value.value == "" and ":" in key.value:
            raise ValueError(f"{key.value!r} has no space after its colon")
    return {key.value: _free(value) for key, value in node.value}


def _type_fault(entry: Entry, shown: str, place: str) -> str:
    return f"{entry.name} is {shown}, not {entry.words} ({place}). {_mend(entry)}"


def _mend(entry: Entry) -> str:
    """What to write instead, with an example where the default is one."""
    example = _EXAMPLES.get(str(entry.kind)) or (
        None if entry.default is None else one_line(entry.default)
    )
    return f"Use {entry.accepts}" + (f", e.g. {entry.name}={example}." if example else ".")


def _shown_node(node: yaml.Node) -> str:
    """The value as it was written: text in quotes, null and numbers as they are."""
    if isinstance(node, yaml.ScalarNode):
        is_text = node.style is not None or node.tag.endswith(":str")
        shown = repr(node.value) if is_text else str(node.value)
    elif isinstance(node, yaml.SequenceNode):
        shown = f"[{', '.join(map(_shown_node, node.value))}]"
    else:
        shown = "a mapping"
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
