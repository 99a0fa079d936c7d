"""Limits: the counts of a model that tensor parallelism must divide, and the words of a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridengine._core import UsageError


@dataclass(frozen=True)
class Limit:
    """`count` units that tp ranks divide among them.

    Where `shared`, tp may also be a multiple of the count: several ranks then hold the same unit.
    """

    words: str  # "9 attention heads", "intermediate size 1536"
    count: int
    shared: bool = False

    def allows(self, tp: int) -> bool:
        return self.count % tp == 0 or (self.shared and tp % self.count == 0)

    @property
    def verb(self) -> str:
        return "do" if self.words[0].isdigit() and self.count != 1 else "does"


def check_tp(limits: Sequence[Limit], tp: int) -> None:
    """Throws UsageError unless every limit allows `tp`.

    The first limit that fails leads, with the values that it allows; then the others that fail,
    and the values that the model as a whole allows where those are fewer.
    """
    failed = [limit for limit in limits if not limit.allows(tp)]
    if not failed:
        return
    first, candidates = failed[0], _candidates(limits)
    possible = [n for n in candidates if first.allows(n)]
    whole = [n for n in possible if all(limit.allows(n) for limit in limits)]
    text = f"{first.words} {first.verb} not divide by tp {tp}; possible: {_join(possible)}"
    if len(failed) > 1:
        text += ". Nor " + ", nor ".join(f"{limit.verb} {limit.words}" for limit in failed[1:])
    if whole != possible:
        text += f". The whole model allows {_join(whole)}"
    raise UsageError(text)


def _candidates(limits: Sequence[Limit]) -> list[int]:
    """Every tp that can be legal at all: the divisors of the first count that is not shared."""
    counts = [limit.count for limit in limits if not limit.shared]
    count = counts[0] if counts else limits[0].count
    return [n for n in range(1, count + 1) if count % n == 0]


def _join(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
