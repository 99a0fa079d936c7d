"""pairs: what a reward model is fitted to, and what it is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import (
    Counts,
    EncodedPreference,
    Pair,
    PromptEncoder,
    encode_preferences,
    hold_out,
    read_pairs,
)
from hybridengine.rlhf.trainer.partition import spread
from hybridengine.rlhf.workers import WorkerGroup


@dataclass(frozen=True)
class Pairs:
    """Encoded, `held_out` never among those to fit to. `counts` is of both."""

    train: list[EncodedPreference]
    held_out: list[EncodedPreference]
    counts: Counts

    @staticmethod
    def open(config: Config, encoder: PromptEncoder) -> Pairs:
        """Those of the evaluation files are held out; without such files `data.eval_share`.

        Throws UsageError for data that is missing or malformed, where none is kept, and where there
        are fewer than a batch, in which some would be twice.
        """
        data = config.data
        pairs = read_pairs(data.train_files, data)
        if data.eval_files:
            held_out = read_pairs(data.eval_files, data)
        else:
            pairs, held_out = hold_out(pairs, data.eval_share, config.seed)

        def encoded(some: Sequence[Pair]) -> tuple[list[EncodedPreference], Counts]:
            if not some:
                return [], Counts(0, 0, 0, 0)
            return encode_preferences(encoder, some, data.max_response_length)

        (train, counts), (others, more) = encoded(pairs), encoded(held_out)
        found = Pairs(train, others, counts + more)
        found._check_batch(data.train_batch_size, bool(data.eval_files))
        return found

    def _check_batch(self, size: int, has_files: bool) -> None:
        count = len(self.train)
        if count >= size:
            return
        others = "" if has_files else f" besides {len(self.held_out)} held out (data.eval_share)"
        raise UsageError(
            f"data.train_batch_size is {size}, and there are {count} pairs{others}: each would be "
            f"in a step {size / count:.3g} times. Set data.train_batch_size to {count} or less; "
            f"{max(1, count // 8)} makes 8 steps of a pass."
        )


def measured(
    group: WorkerGroup, held_out: Sequence[EncodedPreference], size: int
) -> dict[str, float]:
    """eval/loss and eval/accuracy, the means over all pairs, `size` at a time; nothing where there
    are none."""
    sums = {"loss": 0.0, "accuracy": 0.0}
    for start in range(0, len(held_out), size):
        some = held_out[start : start + size]
        found = group.evaluate(shards(some, group.num_places))[0]
        for name in sums:
            sums[name] += found[name] * len(some)
    return {f"eval/{name}": value / len(held_out) for name, value in sums.items() if held_out}


def shards(pairs: Sequence[EncodedPreference], places: int) -> list[tuple[Batch, Batch]]:
    """By place, the chosen and the rejected rows."""
    lengths = [len(pair.chosen_ids) + len(pair.rejected_ids) for pair in pairs]
    return [
        (
            _rows([pairs[index].chosen_ids for index in part]),
            _rows([pairs[index].rejected_ids for index in part]),
        )
        for part in spread(lengths, places)
    ]


def _rows(ids: Sequence[list[int]]) -> Batch:
    return Batch(
        torch.tensor([len(row) for row in ids], dtype=torch.int64),
        {"ids": torch.tensor([token for row in ids for token in row], dtype=torch.int64)},
    )
