"""short_batches: what a run says of batches that a group filter could not fill."""

from __future__ import annotations

import sys

from hybridengine._core import UsageError
from hybridengine.rlhf.config.schema import Algorithm
from hybridengine.wording import counted


class ShortBatches:
    """A line on stderr at the first short batch, the second, the fourth and so on: a policy that
    has learned nearly all there is makes many. How many groups there were at each step is
    rollout/kept_groups, and how many lacked rollout/missing_groups."""

    def __init__(self, algorithm: Algorithm, size: int) -> None:
        """`size`: the groups of a full batch."""
        self._algorithm, self._size = algorithm, size
        self._count = 0

    def see(self, groups: int, rounds: int) -> None:
        """A batch of `groups` after so many draws. Throws UsageError for a short one with
        short_batch=error."""
        if groups >= self._size:
            return
        what = (
            f"only {groups} of {self._size} groups teach something after "
            f"{counted(rounds, 'draw')} (algorithm.max_filter_rounds): in the others all scores "
            "are equal"
        )
        if self._algorithm.short_batch == "error":
            raise UsageError(
                f"{what}. Raise algorithm.max_filter_rounds, give easier or harder prompts, or set "
                "algorithm.short_batch=train to train on what there is."
            )
        self._count += 1
        if self._count & (self._count - 1) == 0:
            does = f"trains on these {groups}" if groups else "trains on nothing"
            so_far = "" if self._count == 1 else f"; {self._count} such steps so far"
            sys.stderr.write(f"hybridengine: {what}; the step {does}{so_far}\n")
