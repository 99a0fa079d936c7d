"""rollouts: responses with their scores, kept as files that offline runs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TextIO

from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.workers import RankContext

_COLUMNS = ("prompt", "response", "ground_truth", "data_source", "extra")


class Rollouts:
    """One file of JSON lines. What JSON cannot hold is written as text. It is made with the first
    row: when roles start, an earlier run may still lie in the run's folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def add(self, batch: Batch, scores: list[float]) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a")
        for row, score in enumerate(scores):
            facts = {name: batch[name][row] for name in _COLUMNS}
            self._file.write(json.dumps({**facts, "score": score}, default=str) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def open_rollouts(context: RankContext, config: Config) -> Rollouts:
    """That of this rank, below the run's folder."""
    assert config.run.name is not None, "the trainer names the run"
    folder = Path(config.run.dir) / config.run.name / "rollouts"
    return Rollouts(folder / f"rank_{context.rank}.jsonl")
