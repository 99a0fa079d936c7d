"""yaml_text: YAML as the config understands it, with the line of every key.

YAML 1.1 with two changes, which readers of configs expect: 1e-6 is a number, and a date is text. It
knows nothing of the schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml  # type: ignore[import-untyped]

from hybridengine._core import UsageError

_FLOAT_TAG = "tag:yaml.org,2002:float"
_NULL_TAG = "tag:yaml.org,2002:null"
_TIMESTAMP_TAG = "tag:yaml.org,2002:timestamp"
_FLOAT = re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)[eE][-+]?[0-9]+$")

# Backslashes before what OmegaConf would take as an interpolation.
_INTERPOLATION = re.compile(r"(\\*)\$\{")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    pass


_LINE_END = re.compile("[\n\r\x85\u2028\u2029]")


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes what `_Loader` would not read as text; spells out repeated values."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Between double quotes where it has ends of lines: only there are they escaped, and
        between single ones some are read back as spaces."""
        style = '"' if _LINE_END.search(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)

for _kind in (_Loader, _Dumper):
    _kind.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP_TAG]
        for first, resolvers in _kind.yaml_implicit_resolvers.items()
    }
    _kind.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+.0123456789"))


# From the number of a line to the words for where that is.
Place = Callable[[int], str]


def compose(text: str, place: Place) -> yaml.Node | None:
    """The root node of `text`, None if it is empty.

    Throws UsageError with the line for a syntax error, a key that is no text or occurs twice in
    its mapping, and a node that contains itself.
    """
    try:
        root = yaml.compose(text, _Loader)
    except yaml.YAMLError as error:
        raise UsageError(_syntax_fault(error, place)) from error
    if root is not None:
        for fault in _faults(root, place, ()):
            raise UsageError(fault)
    return root


def set_twice(name: str, place: Place, first_line: int, second_line: int) -> str:
    """The sentence about a key that occurs twice."""
    where = " and ".join(dict.fromkeys((place(first_line), place(second_line))))
    return f"{name} is set twice: {where}. Leave one of them out."


def plain(node: yaml.Node) -> Any:
    """The Python value of `node`. Throws yaml.YAMLError for a tag that is not plain YAML."""
    loader = _Loader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def text_value(name: str, node: yaml.Node, place: str) -> Any:
    """As it is written, 007 as "007", for a key that holds text; what is no text is as it is."""
    if isinstance(node, yaml.ScalarNode) and not is_null(node):
        return node.value
    return free_value(name, node, place)


def free_value(name: str, node: yaml.Node, place: str) -> Any:
    """Any value. Throws UsageError, which names the key `name`, for one that is not plain YAML."""
    try:
        return _free(node)
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{name} cannot be read ({place}): {reason}. Write plain YAML.") from error


def is_null(node: yaml.Node) -> bool:
    return bool(node.tag == _NULL_TAG)


def line(node: yaml.Node) -> int:
    """The line on which `node` starts, from 1."""
    return int(node.start_mark.line) + 1


def one_line(value: Any) -> str:
    """`value` as YAML in one line, which `compose` reads back; `${` in texts is escaped."""
    text: str = yaml.dump(
        _escaped(value),
        Dumper=_Dumper,
        default_flow_style=True,
        allow_unicode=True,
        sort_keys=False,
        width=float("inf"),
    )
    return text.removesuffix("...\n").rstrip("\n")


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return _INTERPOLATION.sub(lambda match: match[1] * 2 + "\\${", value)
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value


def _free(node: yaml.Node) -> Any:
    """Any plain value. Throws ValueError in words for others."""
    if isinstance(node, yaml.SequenceNode):
        return [_free(item) for item in node.value]
    if not isinstance(node, yaml.MappingNode):
        value = plain(node)
        if isinstance(value, (str, int, float, type(None))):
            return value
        raise ValueError(f"{node.value!r} is a {type(value).__name__}")
    for key, value in node.value:
        if is_null(value) and value.value == "" and ":" in key.value:
            raise ValueError(f"{key.value!r} has no space after its colon")
    return {key.value: _free(value) for key, value in node.value}


def _syntax_fault(error: yaml.YAMLError, place: Place) -> str:
    mark = getattr(error, "problem_mark", None)
    where = place(1) if mark is None else f"{place(mark.line + 1)}, column {mark.column + 1},"
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return f"{where} is not YAML: {problem}. Look there and just before it."


def _faults(node: yaml.Node, place: Place, above: tuple[int, ...]) -> Iterator[str]:
    """Sentences about keys that are no text or occur twice, and nodes that contain themselves."""
    if id(node) in above:
        yield f"{place(line(node))} refers to what it is part of. Write the value out."
        return
    within = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _faults(child, place, within)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                yield f"{place(line(key))} has a list or mapping as a key. Write text there."
                continue
            name = key.value
            if name in seen:
                yield set_twice(name, place, seen[name], line(key))
            seen[name] = line(key)
            yield from _faults(child, place, within)
