"""fields: one key of the config with its default, its line of help and what it accepts.

The schema is dataclasses whose fields are made here; everything that shows or checks a config reads
these records, so that a key is described in one place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_METADATA = "key"


@dataclass(frozen=True)
class Key:
    """What is known of a key besides its name, type and default.

    `choices`: the only values, for strings. `least`, `above` and `most`: bounds of a number; NaN is
    outside of every bound.
    """

    help: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None


def key(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] = (),
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
) -> Any:
    """A dataclass field with this default; a list or dict is copied for every config."""
    metadata = {_METADATA: Key(help, tuple(choices), least, above, most)}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def section(kind: type, help: str) -> Any:
    """A dataclass field that holds a section of its own."""
    return dataclasses.field(default_factory=kind, metadata={_METADATA: Key(help)})


def is_key(field: dataclasses.Field[Any]) -> bool:
    """Whether a user may set it; what is computed from other keys has no record."""
    return _METADATA in field.metadata


def key_of(field: dataclasses.Field[Any]) -> Key:
    found: Key = field.metadata[_METADATA]
    return found
