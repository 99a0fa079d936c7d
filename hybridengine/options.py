"""options: the plain arguments of public functions, checked before anything is done with them.

Each function returns the value as the engine wants it, or throws a UsageError that names the
argument, shows the value, and says what to write.
"""

from __future__ import annotations

import operator
import re
from typing import Any

from hybridengine._core import UsageError
from hybridengine.wording import kind_of

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MOST_SECONDS = 1e9
_LARGEST = (1 << 62) - 1


def parse_size(text: str) -> int:
    """Bytes from '32M', '32MiB' or '33554432'. Throws UsageError."""
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*([KMG]?)(?:iB)?\s*", text, re.IGNORECASE)
    if match is None:
        raise UsageError(f"{text!r} is no size. Write 33554432, 512K, 32M or 1G.")
    return int(match[1]) * _UNITS[match[2].upper()]


def size_bytes(name: str, value: Any) -> int:
    """A number of bytes, from a number or a text such as '32M'. Whether it is large enough, its
    user says."""
    if isinstance(value, str):
        try:
            value = parse_size(value)
        except UsageError as error:
            raise UsageError(f"{name}={error}") from None
    return whole(name, value, "bytes, or a text such as '32M'")


def whole(name: str, value: Any, of: str = "") -> int:
    """A whole number; numpy's will do."""
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            pass
        else:
            if abs(number) <= _LARGEST:
                return number
            raise UsageError(f"{name} is {number}, more than is counted here. Use less.")
    wanted = f"a whole number of {of}" if of else "a whole number"
    raise UsageError(f"{name} is {_shown(value)}. Use {wanted}.")


def seconds(name: str, value: Any) -> float | None:
    """A time above 0; None stays None."""
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value < _MOST_SECONDS:
        raise UsageError(
            f"{name} must be a positive number of seconds, not {_shown(value)}. Leave it out for "
            "that of the environment."
        )
    return float(value)


def flag(name: str, value: Any) -> bool:
    """True or False, and nothing else that Python takes for one."""
    if value is True or value is False:
        return bool(value)
    raise UsageError(f"{name} is {_shown(value)}. Use True or False.")


def one_of(name: str, value: Any, legal: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in legal:
        return value
    raise UsageError(f"{name} is {_shown(value)}. Use {', '.join(legal)}.")


def blob(name: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    raise UsageError(f"{name} is {_shown(value)}. Use the bytes that save() gave.")


def text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise UsageError(f"{name} is {_shown(value)}. Use a text.")


def callable_(name: str, value: Any) -> Any:
    if callable(value):
        return value
    raise UsageError(f"{name} is {kind_of(value)}. Use a function.")


def _shown(value: Any) -> str:
    """Plain values as they are; what may be long or without a good text, by its type."""
    return repr(value) if isinstance(value, (str, int, float)) else kind_of(value)
