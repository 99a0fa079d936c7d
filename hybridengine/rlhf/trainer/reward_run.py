"""reward_run: `hybridengine train-reward`: a reward model fitted to pairs of answers."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.loading import save_config
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import (
    EncodedPreference,
    PromptEncoder,
    PromptLoader,
    encode_preferences,
    read_pairs,
)
from hybridengine.rlhf.logging import open_sinks
from hybridengine.rlhf.trainer.checks import checked_tokenizer
from hybridengine.rlhf.trainer.partition import spread
from hybridengine.rlhf.trainer.placement import TRAIN, gpus_per_rank
from hybridengine.rlhf.trainer.run import open_folder, with_steps
from hybridengine.rlhf.workers import Cluster, PoolSpec, WorkerGroup, create_pools


def train_reward(config: Config) -> int:
    """Fits a classifier with one number to the pairs of `data.train_files` by the loss of Bradley
    and Terry, as `critic` says (lr, sharding, epochs are the trainer's), and writes it to
    `<run>/hf`, which `reward_model.path` takes. Returns 0.

    summary.json: loss and accuracy over the evaluation files, or else over the last steps. Throws
    UsageError before any process starts where data, tokenizer or model do not fit.
    """
    began = time.monotonic()
    console = Console()
    encoder = PromptEncoder.of(checked_tokenizer(config), config.data)
    pairs = _encoded(config, encoder, config.data.train_files)
    held_out = _encoded(config, encoder, config.data.eval_files)
    size = config.data.train_batch_size
    config = with_steps(config, -(-len(pairs) // size))
    folder = open_folder(config)
    save_config(config, folder / "config.yaml")
    console.print(
        f"{folder}: {len(pairs)} pairs, {config.trainer.steps} steps on "
        f"{config.trainer.ranks} ranks",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    with Cluster.start(config.cluster) as cluster:
        group = _start(cluster, config)
        history = _fit(config, group, pairs, folder, began)
        summary = _evaluated(group, held_out, size) if held_out else _last(history)
        group.export(str(folder / "hf"))
    summary |= {"steps": len(history), "seconds": time.monotonic() - began}
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    console.print(
        f"loss {summary['loss']:.3f}, {summary['accuracy']:.1%} of pairs in the right order, after "
        f"{len(history)} steps; {folder}/hf",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    return 0


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


def _fit(
    config: Config,
    group: WorkerGroup,
    pairs: Sequence[EncodedPreference],
    folder: Path,
    began: float,
) -> list[dict[str, float]]:
    """The metrics of every step."""
    loader = PromptLoader(
        len(pairs), config.data.train_batch_size, config.seed, shuffle=config.data.shuffle
    )
    sinks = open_sinks(config, folder)
    history: list[dict[str, float]] = []
    limit = config.trainer.time_limit_s
    try:
        for step in range(1, (config.trainer.steps or 0) + 1):
            if limit is not None and time.monotonic() - began > limit:
                break
            chosen = [pairs[index] for index in loader.next_batch()]
            found = group.update(_shards(chosen, group.pool.num_ranks))[0]
            history.append({f"reward_model/{name}": value for name, value in found.items()})
            sinks.log(step, history[-1])
    finally:
        sinks.close()
    return history


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
