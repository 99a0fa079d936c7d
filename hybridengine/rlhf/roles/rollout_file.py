"""rollout_file: the responses that a run trains on, with their scores, one JSON object a line.

Each rank that scores writes its own. What the columns of tokens mean, and how an offline run reads
them, is in data/rollout_rows.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import torch

from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.schema import Config, Data
from hybridengine.rlhf.data import Tokens, token_columns
from hybridengine.rlhf.workers import RankContext

# Objects of a batch, each with a key of section data that names its column.
_OBJECTS = ("prompt", "response", "ground_truth", "data_source", "extra")
_ROWS = ("truncated", "sample_id", "group")


class RolloutFile:
    """What JSON cannot hold is written as text; columns have the names under which `data` reads
    them. The file is made with the first row: when roles start, an earlier run may still lie in the
    run's folder."""

    def __init__(self, path: Path, data: Data) -> None:
        self._path = path
        self._columns = {name: getattr(data, f"{name}_key") for name in _OBJECTS}
        self._file: TextIO | None = None

    def add(self, batch: Batch, scores: list[float]) -> None:
        """Rows with ids, prompt_length and rollout_log_probs, and the columns that rewards take."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a")
        for row, (facts, score) in enumerate(zip(_facts(batch), scores, strict=True)):
            texts = {column: batch[name][row] for name, column in self._columns.items()}
            record = {**texts, "score": score, **facts}
            self._file.write(json.dumps(record, default=str) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def open_rollout_file(context: RankContext, config: Config) -> RolloutFile:
    """That of this rank."""
    return RolloutFile(rollouts_folder(config) / f"rank_{context.rank}.jsonl", config.data)


def rollouts_folder(config: Config) -> Path:
    """Where the files of all ranks are, once they have a row."""
    assert config.run.name is not None, "the trainer names the run"
    return Path(config.run.dir) / config.run.name / "rollouts"


def _facts(batch: Batch) -> Iterator[dict[str, Any]]:
    lengths = batch.lengths.tolist()
    names = ("ids", "mask", "rollout_log_probs", "weight_version")
    columns = {name: batch[name].split(lengths) for name in names if name in batch}
    for row, prompt in enumerate(batch["prompt_length"].tolist()):
        token = {name: column[row] for name, column in columns.items()}
        tokens = Tokens(
            prompt_ids=token["ids"][:prompt].tolist(),
            response_ids=token["ids"][prompt:].tolist(),
            response_mask=token["mask"][prompt:].tolist(),
            log_probs=_shortest(token["rollout_log_probs"][prompt:]),
        )
        facts = {name: batch[name][row].item() for name in _ROWS}
        if "weight_version" in token:
            facts["weight_versions"] = token["weight_version"][token["mask"]].unique().tolist()
        yield facts | token_columns(tokens)


def _shortest(values: torch.Tensor) -> list[float]:
    """With the fewest digits that the type of `values` reads back the same."""
    return [float(str(value)) for value in values.numpy()]
