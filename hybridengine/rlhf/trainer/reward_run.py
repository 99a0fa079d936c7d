"""reward_run: `hybridengine train-reward`: a reward model fitted to pairs of answers."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hybridengine.rlhf.config.pools import TRAIN
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import PromptEncoder
from hybridengine.rlhf.logging import busy, open_screen
from hybridengine.rlhf.model_files import check_base_model
from hybridengine.rlhf.trainer import report
from hybridengine.rlhf.trainer.changes import check_unchanged, words_of_changes
from hybridengine.rlhf.trainer.fit import Fit, fitted
from hybridengine.rlhf.trainer.folder import RunFolder
from hybridengine.rlhf.trainer.pairs import Pairs
from hybridengine.rlhf.trainer.placement import gpus_per_rank, idle_gpus
from hybridengine.rlhf.trainer.rehearsal import rehearse_reward
from hybridengine.rlhf.trainer.resume import check_steps_left
from hybridengine.rlhf.trainer.run import with_steps
from hybridengine.rlhf.trainer.vocabulary import checked_tokenizer
from hybridengine.rlhf.workers import Cluster, PoolSpec, WorkerGroup, create_pools


def train_reward(config: Config, command: Sequence[str] = ("hybridengine", "train-reward")) -> int:
    """Fits a classifier with one number to the pairs of `data.train_files` by the loss of Bradley
    and Terry, as `critic` says (lr, sharding, epochs are the trainer's), and writes it to
    `<run>/hf`, which `reward_model.path` takes. Returns 0.

    summary.json: loss and accuracy over the pairs that were held out, or else over the last steps.
    It goes on, and says how, as `train` does. Throws UsageError before any process starts where
    folder, data, tokenizer or model do not fit; RunError, WorkerError later.
    """
    began = time.monotonic()
    screen = open_screen()
    check_base_model(config)
    with RunFolder.claim(config) as folder:
        if config.run.resume:
            check_unchanged(config, folder.path, ["reward_model"])
        tokenizer = checked_tokenizer(config)
        pairs = Pairs.open(config, PromptEncoder.of(tokenizer, config.data))
        steps_per_epoch = -(-len(pairs.train) // config.data.train_batch_size)
        config = folder.named(with_steps(config, steps_per_epoch))
        if config.run.resume:
            check_steps_left(config, folder.path, exports=True)
        rehearse_reward(config, tokenizer, folder)
        report.announce_fit(screen, config, pairs.counts, len(pairs.held_out), folder.path)
        if config.run.resume:
            report.say(screen, words_of_changes(config, folder.path))
        with busy(screen, "starting the ranks"):
            cluster = Cluster.start(config.cluster)
        with cluster:
            report.say(screen, idle_gpus(config, cluster.available()))
            with busy(screen, "starting the roles"):
                group = _start(cluster, config)
            with folder.standing(config, command):
                summary, ending = fitted(config, Fit(config, group, pairs, folder.path, began))
        report.conclude_fit(screen, summary, folder.path, str(ending))
    return 0


def _start(cluster: Cluster, config: Config) -> WorkerGroup:
    from hybridengine.rlhf.roles.heads import RewardTrainRole

    trainer, cpus = config.trainer, config.cluster.cpus_per_rank
    spec = PoolSpec(trainer.ranks, cpus, gpus_per_rank(config))
    pool = create_pools(cluster, {TRAIN: spec})[TRAIN]
    return pool.start_role("reward_model", RewardTrainRole, config)
