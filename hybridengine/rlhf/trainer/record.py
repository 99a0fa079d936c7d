"""record: what a run has done so far, over all its parts.

Every checkpoint has it, so that the summary, the curve and the samples of a run are of all of it,
however often it was resumed. Not its logs: those are written as it goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Record:
    """`history`: the metrics of each step from the first on, with those of an evaluation behind it.
    `before`: by prompt, what the policy answered before the first step. `seconds`: what the parts
    took that ended before this one began."""

    history: list[dict[str, float]] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def step(self) -> int:
        """The last that was done."""
        return len(self.history)
