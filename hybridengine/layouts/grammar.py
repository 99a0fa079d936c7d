"""The strings of layouts: `name(n, key=int, ...)[@ranks]`, with ranks like '0-7,16-23'.

Only text: which names and keys there are, families.py knows. A *call* is what the text says before
anything is checked against a family.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hybridengine._core import UsageError

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\(([^()]*)\))?\s*(?:@(.*))?", re.ASCII | re.DOTALL)
_FORM = "Write name(key=number, ...), then @ranks if they are not 0, 1, 2, ...: vllm(tp=2)@4-5."

# Far beyond any cluster, and small enough to make a list of.
MAX_RANKS = 1 << 20


@dataclass(frozen=True)
class Call:
    name: str
    positional: int | None
    keys: tuple[tuple[str, int], ...]
    ranks: tuple[int, ...] | None


def parse_call(text: str) -> Call:
    """Throws UsageError that quotes the part which cannot be read."""
    match = _CALL.fullmatch(text)
    if match is None:
        raise UsageError(f"cannot read the layout {text!r}. {_FORM}")
    name, arguments, ranks = match.groups()
    positional, keys = _parse_arguments(name, arguments or "")
    return Call(name, positional, keys, None if ranks is None else parse_ranks(ranks))


def parse_ranks(text: str) -> tuple[int, ...]:
    """The ranks of '0-7,16-23', in the order written. Throws UsageError."""
    ranks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", part)
        if match is None:
            raise UsageError(f"cannot read the ranks '@{text}': {part!r}. Write 0-7 or 0-7,16-23.")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise UsageError(f"ranks '{part.strip()}' run backwards. Write {last}-{first}.")
        if len(ranks) + last - first >= MAX_RANKS:
            raise UsageError(f"'@{text}' names more than {MAX_RANKS} ranks. Name fewer.")
        ranks.extend(range(first, last + 1))
    check_ranks(ranks)
    return tuple(ranks)


def check_ranks(ranks: Sequence[int]) -> None:
    """Throws UsageError on a rank that is negative, no number, or named twice."""
    seen: set[int] = set()
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
            raise UsageError(f"{rank!r} is no rank. Use whole numbers from 0.")
        if rank in seen:
            raise UsageError(
                f"rank {rank} is named twice in '@{format_ranks(ranks)}'. Name it once."
            )
        seen.add(rank)


def format_ranks(ranks: Sequence[int]) -> str:
    """The shortest text that parse_ranks() reads as these ranks."""
    parts: list[str] = []
    begin = 0
    for end in range(1, len(ranks) + 1):
        if end < len(ranks) and ranks[end] == ranks[end - 1] + 1:
            continue
        first, last = ranks[begin], ranks[end - 1]
        parts.append(str(first) if first == last else f"{first}-{last}")
        begin = end
    return ",".join(parts)


def _parse_arguments(name: str, text: str) -> tuple[int | None, tuple[tuple[str, int], ...]]:
    positional: int | None = None
    keys: dict[str, int] = {}
    if not text.strip():
        return None, ()
    for index, part in enumerate(text.split(",")):
        key, equals, value = (piece.strip() for piece in part.rpartition("="))
        if not equals and index > 0:
            raise UsageError(f"{value!r} in {name}({text}) has no key. {_FORM}")
        number = _parse_number(value, key or "the number of ranks", f"{name}({text})")
        if not equals:
            positional = number
            continue
        if not key.isidentifier():
            raise UsageError(f"{key!r} in {name}({text}) is no key. {_FORM}")
        if key in keys:
            raise UsageError(f"{key} is given twice in {name}({text}). Give it once.")
        keys[key] = number
    return positional, tuple(keys.items())


def _parse_number(text: str, key: str, call: str) -> int:
    if re.fullmatch(r"-?[0-9]{1,9}", text) is None:
        raise UsageError(f"{key} in {call} is {text!r}. Use a whole number from 1.")
    return int(text)
