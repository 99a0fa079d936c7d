"""offline: rollouts from files instead of generation.

Responses are scored and their old log-probs computed once, with the weights that training starts
from: at the start of a run, and again at a resume before its checkpoint is loaded, so that the
ratio of every step is to the same policy. Steps draw prompts with all their responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hybridengine.rlhf.batch import Batch, as_rows
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import (
    Encoded,
    EncodedResponse,
    PromptEncoder,
    PromptLoader,
    digest_of,
    encode_pairs,
    open_data,
)
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.partition import spread
from hybridengine.rlhf.trainer.preflight import check_ground_truth
from hybridengine.rlhf.trainer.rows import Rows
from hybridengine.rlhf.trainer.scored import Scored
from hybridengine.rlhf.trainer.step import Steps
from hybridengine.rlhf.trainer.vocabulary import check_tokens

_CHUNK_ROWS = 4096  # scored and measured at a time


class Offline:
    """The responses of the training files. Rows with the same prompt are a group."""

    train: Sequence[Encoded] = ()  # there is nothing that generates

    def __init__(self, config: Config, tokenizer: Any) -> None:
        """Throws UsageError on data that is missing, malformed or empty after the filters, or that
        lacks what rewards need."""
        data = config.data
        self.encoder = PromptEncoder.of(tokenizer, data)
        self._encoded, self.counts = encode_pairs(
            self.encoder, open_data(config, "train"), data.max_response_length
        )
        check_ground_truth(config.reward, self._encoded)
        check_tokens(config, self._encoded)
        self._has_log_probs = all(map(_has_log_probs, self._encoded))
        serials: dict[tuple[int, ...], int] = {}
        self._groups = [
            serials.setdefault(tuple(each.ids[: each.prompt_length]), len(serials))
            for each in self._encoded
        ]
        self._members: list[list[int]] = [[] for _ in serials]
        for row, group in enumerate(self._groups):
            self._members[group].append(row)
        self._size = data.train_batch_size
        digest = digest_of(each.ids for each in self._encoded)
        self._loader = PromptLoader(len(serials), self._size, config.seed, data.shuffle, digest)
        self._all: Scored | None = None

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self._members) // self._size)

    def begin(self, steps: Steps) -> None:
        """Scores all rows and takes their old log-probs from the weights as they are now."""
        self._all = self._scored(steps)

    def rollouts(self, steps: Steps, clock: Clock) -> tuple[Scored, dict[str, float]]:
        """The responses to the next prompts, and their metrics. begin() comes first."""
        assert self._all is not None, "begin() comes first"
        # A batch that crosses the border of an epoch may name a prompt twice: once is enough.
        chosen = dict.fromkeys(self._loader.next_batch())
        scored = self._all.select([row for group in chosen for row in self._members[group]])
        return scored, scored.metrics()

    def baselines(self, steps: Steps, scored: Scored, clock: Clock) -> None:
        """None: there is no greedy response to compare with."""

    def state_dict(self) -> dict[str, Any]:
        return {"loader": self._loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state["loader"])

    def resume_files(self, rollouts: Path) -> None:
        """None: it writes no rollouts."""

    def _scored(self, steps: Steps) -> Scored:
        """All rows with scores and old log-probs."""
        chunks = []
        for start in range(0, len(self._encoded), _CHUNK_ROWS):
            rows = list(range(start, min(start + _CHUNK_ROWS, len(self._encoded))))
            batch = self._batch(rows)
            reference = steps.roles.actor.cluster.put(batch)
            places = Rows.of([reference], [list(range(len(rows)))])
            lengths = batch.lengths.tolist()
            found = steps.score(places, lengths, Clock())
            parts = spread(lengths, steps.roles.actor.num_places)
            measured = steps.roles.actor.prepare(
                [(found["rows"].picks(part), {}) for part in parts]
            )
            found["rows"] = Rows.of(measured, parts)
            chunks.append(
                Scored(
                    lengths=lengths,
                    responses=(batch.lengths - batch["prompt_length"]).tolist(),
                    truncated=batch["truncated"].tolist(),
                    groups=[self._groups[row] for row in rows],
                    **found,
                )
            )
        return Scored.concat(chunks)

    def _batch(self, rows: list[int]) -> Batch:
        some = [self._encoded[row] for row in rows]
        prompts = [each.ids[: each.prompt_length] for each in some]
        answers = [each.ids[each.prompt_length :] for each in some]
        return (
            as_rows(prompts, answers)
            .with_tokens(**_token_columns(some, log_probs=self._has_log_probs))
            .with_rows(
                sample_id=torch.tensor(rows),
                group=torch.tensor([self._groups[row] for row in rows]),
                truncated=torch.tensor([each.sample.truncated for each in some]),
            )
            .with_objects(
                prompt=[str(each.sample.prompt) for each in some],
                response=[each.sample.response for each in some],
                ground_truth=[each.sample.ground_truth for each in some],
                data_source=[each.sample.data_source for each in some],
                extra=[each.sample.extra for each in some],
                where=[each.sample.name() for each in some],
            )
        )


def _has_log_probs(each: EncodedResponse) -> bool:
    return each.sample.tokens is not None and each.sample.tokens.log_probs is not None


def _token_columns(some: Sequence[EncodedResponse], *, log_probs: bool) -> dict[str, torch.Tensor]:
    """mask, and rollout_log_probs where all rows have them."""
    mask: list[bool] = []
    sampled: list[float] = []
    for each in some:
        tokens, length = each.sample.tokens, len(each.ids) - each.prompt_length
        mask += [False] * each.prompt_length
        mask += [True] * length if tokens is None else tokens.response_mask
        if log_probs:
            assert tokens is not None and tokens.log_probs is not None
            sampled += [0.0] * each.prompt_length + tokens.log_probs
    columns = {"mask": torch.tensor(mask, dtype=torch.bool)}
    return {**columns, "rollout_log_probs": torch.tensor(sampled)} if log_probs else columns
