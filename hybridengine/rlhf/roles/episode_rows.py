"""episode_rows: episodes as rows of a batch, and prompts as tasks for a player."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.data.samples import Sample
from hybridengine.rlhf.environments import Episode, Task
from hybridengine.rlhf.environments.choosing import Environments


def tasks_of(prompts: Batch, environments: Environments) -> list[Task]:
    """An episode of each prompt (ids, sample_id, and the objects of a sample)."""
    prompt_ids = [ids.tolist() for ids in prompts["ids"].split(prompts.lengths.tolist())]
    tasks = []
    for row, (ids, number) in enumerate(
        zip(prompt_ids, prompts["sample_id"].tolist(), strict=True)
    ):
        sample = Sample(
            number,
            prompts["prompt"][row],
            None,
            prompts["ground_truth"][row],
            prompts["data_source"][row],
            prompts["extra"][row],
            where=prompts["where"][row],
        )
        tasks.append(Task(ids, number, sample, *environments.of(sample)))
    return tasks


def as_batch(prompts: Batch, episodes: Sequence[Episode], *, turns: bool) -> Batch:
    """The episodes of `prompts` with the columns of those by row. `response` is the text of the
    last response. With `turns` also what environments gave: turn_rewards by token, and the objects
    `exchanges` (pairs of texts) and `numbers`."""

    def flat(name: str, dtype: torch.dtype) -> torch.Tensor:
        values = itertools.chain.from_iterable(getattr(each, name) for each in episodes)
        return torch.tensor(list(values), dtype=dtype)

    batch = Batch(
        torch.tensor([len(each.ids) for each in episodes], dtype=torch.int64),
        {
            "ids": flat("ids", torch.int64),
            "mask": flat("mask", torch.bool),
            "rollout_log_probs": flat("log_probs", torch.float32),
            "weight_version": flat("versions", torch.int64),
        },
        {
            **prompts.rows,
            "prompt_length": torch.tensor([e.prompt_length for e in episodes], dtype=torch.int64),
            "truncated": torch.tensor([each.truncated for each in episodes], dtype=torch.bool),
        },
        {**prompts.objects, "response": [each.response for each in episodes]},
    )
    if not turns:
        return batch
    return batch.with_tokens(turn_rewards=flat("rewards", torch.float64)).with_objects(
        exchanges=[[(e.response, e.observation) for e in each.exchanges] for each in episodes],
        numbers=[each.numbers for each in episodes],
    )
