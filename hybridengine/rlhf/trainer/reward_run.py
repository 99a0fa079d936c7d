"""reward_run: `hybridengine train-reward`: a reward model fitted to pairs of answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console

from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import (
    EncodedPreference,
    PromptEncoder,
    PromptLoader,
    encode_preferences,
    read_pairs,
)
from hybridengine.rlhf.logging import open_sinks
from hybridengine.rlhf.trainer.checkpoints import Checkpoints
from hybridengine.rlhf.trainer.checks import checked_tokenizer
from hybridengine.rlhf.trainer.export import export
from hybridengine.rlhf.trainer.failure import finish
from hybridengine.rlhf.trainer.folder import RunFolder
from hybridengine.rlhf.trainer.partition import spread
from hybridengine.rlhf.trainer.placement import TRAIN, gpus_per_rank
from hybridengine.rlhf.trainer.rehearsal import rehearse_reward
from hybridengine.rlhf.trainer.resume import check_steps_left
from hybridengine.rlhf.trainer.run import with_steps
from hybridengine.rlhf.workers import Cluster, PoolSpec, WorkerGroup, create_pools


def train_reward(config: Config, command: Sequence[str] = ("hybridengine", "train-reward")) -> int:
    """Fits a classifier with one number to the pairs of `data.train_files` by the loss of Bradley
    and Terry, as `critic` says (lr, sharding, epochs are the trainer's), and writes it to
    `<run>/hf`, which `reward_model.path` takes. Returns 0.

    summary.json: loss and accuracy over the evaluation files, or else over the last steps. It goes
    on, and says how, as `train` does. Throws UsageError before any process starts where folder,
    data, tokenizer or model do not fit; RunError, WorkerError later.
    """
    began = time.monotonic()
    console = Console()
    with RunFolder.claim(config) as folder:
        tokenizer = checked_tokenizer(config)
        encoder = PromptEncoder.of(tokenizer, config.data)
        pairs = _encoded(config, encoder, config.data.train_files)
        held_out = _encoded(config, encoder, config.data.eval_files)
        config = folder.named(with_steps(config, -(-len(pairs) // config.data.train_batch_size)))
        if config.run.resume:
            check_steps_left(config, folder.path, exports=True)
        rehearse_reward(config, tokenizer, folder)
        console.print(
            f"{folder.path}: {len(pairs)} pairs, {config.trainer.steps} steps on "
            f"{config.trainer.ranks} ranks",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
        with Cluster.start(config.cluster) as cluster:
            group = _start(cluster, config)
            with folder.standing(config, command):
                fit = Fit(config, group, pairs, folder.path, began)
                summary = fitted(config, fit, held_out)
    console.print(
        f"loss {summary['loss']:.3f}, {summary['accuracy']:.1%} of pairs in the right order, after "
        f"{fit.step} steps; {folder.path}/hf",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    return 0


def fitted(config: Config, fit: Fit, held_out: Sequence[EncodedPreference]) -> dict[str, float]:
    """Fits, and writes what the run leaves; its summary."""
    if config.run.resume:
        fit.restore()
    fit.run()
    size = config.data.train_batch_size
    summary = _evaluated(fit.group, held_out, size) if held_out else _last(fit.history)
    summary |= {"steps": fit.step, "seconds": time.monotonic() - fit.began}
    path = fit.folder / "summary.json"
    parts: list[Callable[[], object]] = [fit.save] if config.trainer.save_interval else []
    parts.append(lambda: export(fit.group, fit.folder, fit.save))
    parts.append(lambda: path.write_text(json.dumps(summary, indent=2) + "\n"))
    finish(fit.folder, parts)
    return summary


def _encoded(
    config: Config, encoder: PromptEncoder, files: Sequence[str]
) -> list[EncodedPreference]:
    if not files:
        return []
    pairs = read_pairs(files, config.data)
    return encode_preferences(encoder, pairs, config.data.max_response_length)[0]


def _start(cluster: Cluster, config: Config) -> WorkerGroup:
    from hybridengine.rlhf.roles.heads import RewardTrainRole

    spec = PoolSpec(
        config.trainer.ranks,
        config.cluster.cpus_per_rank,
        gpus_per_rank(config, cluster.available()),
    )
    pool = create_pools(cluster, {TRAIN: spec})[TRAIN]
    return pool.start_role("reward_model", RewardTrainRole, config)


class Fit:
    """The steps of a run. `history` has the metrics of all, also those before a checkpoint."""

    def __init__(
        self,
        config: Config,
        group: WorkerGroup,
        pairs: Sequence[EncodedPreference],
        folder: Path,
        began: float,
    ) -> None:
        self.config, self.group, self.folder, self.began = config, group, folder, began
        self.history: list[dict[str, float]] = []
        self._pairs = pairs
        self._loader = PromptLoader(
            len(pairs), config.data.train_batch_size, config.seed, shuffle=config.data.shuffle
        )
        keep = config.trainer.keep_checkpoints
        self._checkpoints = Checkpoints(folder, {"reward_model": group}, keep)

    @property
    def step(self) -> int:
        """The last that was done."""
        return len(self.history)

    def restore(self) -> None:
        """Goes on from the newest checkpoint."""
        state = self._checkpoints.restore()
        self.history = state["history"]
        self._loader.load_state_dict(state["loader"])

    def save(self) -> None:
        """Throws RunError where it cannot be written."""
        state = {"loader": self._loader.state_dict(), "history": self.history}
        self._checkpoints.save(self.step, state)

    def run(self) -> None:
        """All steps that are left."""
        trainer = self.config.trainer
        limit = trainer.time_limit_s
        sinks = open_sinks(self.config, self.folder)
        try:
            while self.step < (trainer.steps or 0):
                if limit is not None and time.monotonic() - self.began > limit:
                    break
                chosen = [self._pairs[index] for index in self._loader.next_batch()]
                found = self.group.update(_shards(chosen, self.group.pool.num_ranks))[0]
                self.history.append(
                    {f"reward_model/{name}": value for name, value in found.items()}
                )
                sinks.log(self.step, self.history[-1])
                if trainer.save_interval and self.step % trainer.save_interval == 0:
                    self.save()
        finally:
            sinks.close()


def _evaluated(
    group: WorkerGroup, held_out: Sequence[EncodedPreference], size: int
) -> dict[str, float]:
    """Means over all pairs, in batches."""
    sums = {"loss": 0.0, "accuracy": 0.0}
    for start in range(0, len(held_out), size):
        some = held_out[start : start + size]
        found = group.evaluate(_shards(some, group.pool.num_ranks))[0]
        for name in sums:
            sums[name] += found[name] * len(some)
    return {name: value / len(held_out) for name, value in sums.items()}


def _last(history: Sequence[dict[str, float]], window: int = 10) -> dict[str, float]:
    """Means of the last steps."""
    last = history[-window:]
    return {
        name: sum(metrics[f"reward_model/{name}"] for metrics in last) / max(len(last), 1)
        for name in ("loss", "accuracy")
    }


def _shards(pairs: Sequence[EncodedPreference], ranks: int) -> list[tuple[Batch, Batch]]:
    """By rank, the chosen and the rejected rows."""
    lengths = [len(pair.chosen_ids) + len(pair.rejected_ids) for pair in pairs]
    return [
        (
            _rows([pairs[index].chosen_ids for index in part]),
            _rows([pairs[index].rejected_ids for index in part]),
        )
        for part in spread(lengths, ranks)
    ]


def _rows(ids: Sequence[list[int]]) -> Batch:
    return Batch(
        torch.tensor([len(row) for row in ids], dtype=torch.int64),
        {"ids": torch.tensor([token for row in ids for token in row], dtype=torch.int64)},
    )
