"""reward_failures: what a run says of rewards that fail for some samples: once."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

# What differs from sample to sample in an error: its name in front, what was returned, a message.
_OF_A_SAMPLE = re.compile(r"^.*?\): |(?<= returned ).*(?=, not )|: .*")


class RewardFailures:
    """A line on stderr for each kind of failure, when it is seen first. How many there were at each
    step is reward/errors."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, errors: Sequence[str], rows: int) -> None:
        """`errors` of `rows` samples that were scored together."""
        kinds: dict[str, list[str]] = {}
        for error in errors:
            kinds.setdefault(_OF_A_SAMPLE.sub("", error), []).append(error)
        for kind, alike in kinds.items():
            if kind not in self._told:
                self._told.add(kind)
                sys.stderr.write(
                    f"hybridengine: {len(alike)} of {rows} samples have reward 0 since it failed; "
                    f"the first: {alike[0]}\n"
                )
