"""source: where the rows of a step come from, as the loop sees it.

Prompts to generate from and responses of files are sources. The loop knows nothing of either: it
asks for the rows of a step, and keeps in its checkpoints where the source stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import Counts, Encoded, PromptEncoder
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.offline import Offline
from hybridengine.rlhf.trainer.prompts import Prompts
from hybridengine.rlhf.trainer.scored import Scored
from hybridengine.rlhf.trainer.step import Steps


class Source(Protocol):
    """Rows without end. Made before any process starts, of data that has been looked at whole."""

    @property
    def counts(self) -> Counts:
        """What became of the training data."""

    @property
    def steps_per_epoch(self) -> int: ...

    @property
    def encoder(self) -> PromptEncoder: ...

    @property
    def train(self) -> Sequence[Encoded]:
        """The prompts to generate from; none where nothing is generated."""

    def begin(self, steps: Steps) -> None:
        """Once in a run, with the weights that its first step starts from: before a checkpoint is
        loaded."""

    def rollouts(self, steps: Steps, clock: Clock) -> tuple[Scored, dict[str, float]]:
        """The scored rows of the next step, and their metrics."""

    def baselines(self, steps: Steps, scored: Scored, clock: Clock) -> list[float] | None:
        """By row, a score to compare with, where the advantage needs one."""

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, in values that JSON can hold."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on exactly there. Throws UsageError for a state of other data."""

    def resume_files(self, rollouts: Path) -> None:
        """Takes out of the run's folder of rollouts what will be made once more."""


def open_source(config: Config, tokenizer: Any) -> Source:
    """That of data.mode. Throws UsageError on data that is missing, malformed or empty after the
    filters, or that lacks what rewards, warm-up or corrections need."""
    if config.data.mode == "offline":
        return Offline(config, tokenizer)
    return Prompts(config, tokenizer)
