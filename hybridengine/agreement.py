"""agreement: how the ranks come to one answer, or to one error.

There is one way. Each rank shows what it has, or what is wrong with it; all of them see what all
showed, and decide. What one rank finds wrong, every rank raises, in the same words, and the
communicator goes on. Every other error of a rank reaches the others as a failure.

Equal values travel once, however many ranks show them, and are decoded once: with n ranks that show
d bytes of different values a rank receives about 40 n + d bytes (csrc/comm/gather.cc).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hybridengine._core import UsageError
from hybridengine.comm import Communicator

T = TypeVar("T")

Shown = Mapping[str, Any]

# A value of more bytes travels by itself, so that ranks that differ elsewhere have it in common.
_SMALL_BYTES = 1024


def agree(comm: Communicator, show: Callable[[], Shown], decide: Callable[[list[Shown]], T]) -> T:
    """What `decide(shown)` makes of what all ranks show, by rank. Collective.

    `show()` gives names and values that JSON can carry (tuples become lists; floats keep their
    bits). A UsageError that it raises is raised by every rank instead, with the rank's number
    unless all have that one. `decide` gets the same on every rank and looks at nothing else, so the
    UsageError that it raises is raised by every rank as well. Ranks may share what they show: do
    not change it.
    """
    with comm.between_calls():
        error, mine = "", {}
        try:
            mine = dict(show())
        except UsageError as fault:
            error = str(fault)
        with comm.call():
            gathered = comm.gather(_pack(error, mine))
        unpacked = _unpack(gathered)
        with comm.agreed():
            raise_first([error for error, _ in unpacked])
            return decide([shown for _, shown in unpacked])


def check_everywhere(comm: Communicator, check: Callable[[], None]) -> None:
    """Runs `check()` on every rank: the UsageError of one is raised by all. Collective."""

    def show() -> Shown:
        check()
        return {}

    agree(comm, show, lambda _: None)


def raise_first(errors: list[str]) -> None:
    """Throws UsageError where a rank has an error; names the rank unless all have that one."""
    for rank, error in enumerate(errors):
        if error:
            raise UsageError(
                error if errors.count(error) == len(errors) else f"rank {rank}: {error}"
            )


def _pack(error: str, shown: Shown) -> list[bytes]:
    small, large = {}, {}
    for name, value in shown.items():
        text = json.dumps(value).encode()
        if len(text) > _SMALL_BYTES:
            large[name] = zlib.compress(text, 1)
        else:
            small[name] = value
    return [json.dumps([error, small, list(large)]).encode(), *large.values()]


def _unpack(gathered: list[list[bytes]]) -> list[tuple[str, Shown]]:
    """Equal bytes are one object, and become one object."""
    decoded: dict[int, Any] = {}

    def once(part: bytes, decode: Callable[[bytes], Any]) -> Any:
        if id(part) not in decoded:
            decoded[id(part)] = decode(part)
        return decoded[id(part)]

    result: list[tuple[str, Shown]] = []
    for head, *parts in gathered:
        error, small, names = once(head, json.loads)
        large = [once(part, lambda each: json.loads(zlib.decompress(each))) for part in parts]
        result.append((error, {**small, **dict(zip(names, large, strict=True))}))
    return result
