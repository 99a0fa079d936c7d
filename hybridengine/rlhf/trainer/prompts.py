"""prompts: the data of a run as token ids, in the order in which steps take them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import (
    Encoded,
    PromptEncoder,
    PromptLoader,
    digest_of,
    drop_groups,
    open_data,
)
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.preflight import check_ground_truth
from hybridengine.rlhf.trainer.scored import Scored
from hybridengine.rlhf.trainer.short_batches import ShortBatches
from hybridengine.rlhf.trainer.step import Steps
from hybridengine.rlhf.trainer.warmup import check_answers


class Prompts:
    """Training prompts without end.

    Each prompt drawn gets a *serial* number, the same for a seed however many ranks there are; its
    n responses are the samples n * serial to n * serial + n - 1, which decide their random numbers.
    """

    def __init__(self, config: Config, tokenizer: Any) -> None:
        """Throws UsageError on data that is missing, malformed or empty after the filters, or that
        lacks what rewards or the warm-up need."""
        data = config.data
        self.encoder = PromptEncoder.of(tokenizer, data)
        self.train, self.counts = self.encoder.encode(open_data(config, "train"))
        check_ground_truth(config.reward, self.train)
        check_answers(config, self.train)
        self._n = config.rollout.n
        self._size = data.train_batch_size
        digest = digest_of(each.ids for each in self.train)
        self._loader = PromptLoader(len(self.train), self._size, config.seed, data.shuffle, digest)
        self._short = ShortBatches(config.algorithm, self._size)
        self._serial = 0
        self._config = config
        self._prompt_of: dict[int, Encoded] = {}  # by serial, of the step that runs

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.train) // self._size)

    def begin(self, steps: Steps) -> None:
        """Nothing: every step generates with the weights that it finds."""

    def draw(self) -> Batch:
        """The prompts of the next step, each n times; see `as_prompts`."""
        chosen = [self.train[index] for index in self._loader.next_batch()]
        serials = range(self._serial, self._serial + len(chosen))
        self._serial += len(chosen)
        self._prompt_of.update(zip(serials, chosen, strict=True))
        return as_prompts(chosen, serials, self._n)

    def rollouts(self, steps: Steps, clock: Clock) -> tuple[Scored, dict[str, float]]:
        """Responses of the next step and their metrics. With a group filter, groups that teach
        nothing are left out, and prompts are drawn until the batch is full, at most
        `max_filter_rounds` times; metrics are then of all responses."""
        algorithm = self._config.algorithm
        self._prompt_of.clear()
        drawn, kept = [steps.respond(self.draw(), clock, keep=True)], []
        if algorithm.group_filter == "none":
            return drawn[0], drawn[0].metrics()
        kept.append(steps.informative(drawn[0]))
        while (
            len(drawn) < algorithm.max_filter_rounds
            and sum(_num_groups(part) for part in kept) < self._size
        ):
            drawn.append(steps.respond(self.draw(), clock, keep=True))
            kept.append(steps.informative(drawn[-1]))
        full = _first_groups(Scored.concat(kept), self._size)
        groups = _num_groups(full)
        self._short.see(groups, len(drawn))
        metrics = Scored.concat(drawn).metrics()
        metrics["rollout/rounds"] = float(len(drawn))
        metrics["rollout/kept_groups"] = float(groups)
        metrics["rollout/missing_groups"] = float(self._size - groups)
        return full, metrics

    def baselines(self, steps: Steps, scored: Scored, clock: Clock) -> list[float] | None:
        """By row, the score of the likeliest response to its prompt, where the advantage needs
        it."""
        if self._config.algorithm.advantage != "remax":
            return None
        groups = sorted(set(scored.groups))
        prompts = as_prompts([self._prompt_of[group] for group in groups], groups, 1)
        greedy = steps.respond(prompts, clock, {"greedy": True})
        by_group = dict(zip(greedy.groups, greedy.scores, strict=True))
        return [by_group[group] for group in scored.groups]

    def state_dict(self) -> dict[str, Any]:
        return {"loader": self._loader.state_dict(), "serial": self._serial}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state["loader"])
        self._serial = int(state["serial"])

    def resume_files(self, rollouts: Path) -> None:
        """Drops the rows of the prompts that will be drawn again."""
        drop_groups(rollouts, self._serial)


def as_prompts(encoded: Sequence[Encoded], serials: Sequence[int], n: int) -> Batch:
    """Rows of ids with sample_id and group (the serial), the n of a prompt one after the other, and
    the objects that rewards need."""
    rows = [
        (each, serial, k) for each, serial in zip(encoded, serials, strict=True) for k in range(n)
    ]
    return Batch(
        torch.tensor([len(each.ids) for each, _, _ in rows], dtype=torch.int64),
        {"ids": torch.tensor([i for each, _, _ in rows for i in each.ids], dtype=torch.int64)},
        {
            "sample_id": torch.tensor([serial * n + k for _, serial, k in rows]),
            "group": torch.tensor([serial for _, serial, _ in rows]),
        },
        {
            "prompt": [each.text for each, _, _ in rows],
            "ground_truth": [each.sample.ground_truth for each, _, _ in rows],
            "data_source": [each.sample.data_source for each, _, _ in rows],
            "extra": [each.sample.extra for each, _, _ in rows],
            "where": [each.sample.name() for each, _, _ in rows],
        },
    )


def _num_groups(scored: Scored) -> int:
    return len(set(scored.groups))


def _first_groups(scored: Scored, count: int) -> Scored:
    """The first `count` groups, whole, in the order in which they were drawn."""
    wanted = set(sorted(set(scored.groups))[:count])
    return scored.select([row for row, group in enumerate(scored.groups) if group in wanted])
