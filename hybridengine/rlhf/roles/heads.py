"""heads: models with one number as output: the critic, and a reward model."""

from __future__ import annotations

import time
from typing import Any

from hybridengine.rlhf.algorithms import explained_variance, sum_over
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.roles import Sharding
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.roles.backends import Task, fsdp2, open_backend
from hybridengine.rlhf.roles.progress import follow
from hybridengine.rlhf.roles.sharded import sharded_model
from hybridengine.rlhf.roles.split_scorer import SplitScorer
from hybridengine.rlhf.roles.trained import TrainedRole, total_updates
from hybridengine.rlhf.training.passes import Passes
from hybridengine.rlhf.training.ppo import ValueLoss
from hybridengine.rlhf.training.supervised import PairUpdate
from hybridengine.rlhf.workers import RankContext, Role, dispatch


class CriticRole(TrainedRole):
    def __init__(self, context: RankContext, config: Config) -> None:
        super().__init__(context, config)
        self.section = critic = config.critic
        updates = total_updates(config, critic.ppo_epochs)
        task = Task("value", critic, critic.path, total_steps=updates)
        self.backend = open_backend(context, config, task)

    @dispatch("by_place", returns="reference")
    def values(self, batch: Batch) -> tuple[Batch, dict[str, Any]]:
        """The columns values and last_values."""
        began = time.perf_counter()
        values, last_values = self.backend.values(batch)
        columns = Batch(batch.lengths, {"values": values}, {"last_values": last_values})
        return columns, {"seconds": time.perf_counter() - began}

    @dispatch("by_place")
    def update(self, batch: Batch) -> dict[str, float]:
        """The optimizer steps of one step of training; means over all ranks."""
        peak = self.peak_flops()
        began = time.perf_counter()
        columns = (batch[name][None] for name in ("values", "returns", "mask"))
        explained = explained_variance(*columns, all_reduce=sum_over(self.context.data_comm))
        loss = ValueLoss(self.config.algorithm)
        metrics = self.backend.update(batch, loss, self.config.critic.ppo_epochs)
        metrics |= {"explained_variance": explained, "peak": peak}
        return {**metrics, "seconds": time.perf_counter() - began}


class RewardModelRole(Role):
    """Scores responses with a sequence-classification model, which does not train: FSDP2 shards
    over all ranks, or with `reward_model.tp_size` places of ranks that share its layers."""

    @classmethod
    def place_size(cls, config: Config) -> int:
        return config.reward_model.tp_size

    def __init__(self, context: RankContext, config: Config) -> None:
        super().__init__(context, config)
        model = config.reward_model
        sharding = Sharding(
            strategy=model.strategy,
            dtype=model.dtype,
            param_offload=model.offload,
            max_tokens_per_gpu=config.actor.max_tokens_per_gpu,
            sequence_packing=config.actor.sequence_packing,
        )
        self._scorer: Passes | SplitScorer
        if context.place_size > 1:
            comm = context.place_comm
            self._scorer = SplitScorer(config, comm, sharding.max_tokens_per_gpu)
            follow(self._scorer.module, context)
        else:
            module = sharded_model(
                context, config, "classifier", sharding, model.path, trains=False
            )
            self._scorer = Passes(module, sharding, comm=context.comm)

    @dispatch("by_place", returns="reference")
    def score(self, batch: Batch) -> tuple[Batch, dict[str, Any]]:
        """The column model_scores: of prompt and response, with the policy's tokens."""
        began = time.perf_counter()
        columns = Batch(batch.lengths, {}, {"model_scores": self._scorer.scores(batch)})
        return columns, {"seconds": time.perf_counter() - began}


class RewardTrainRole(TrainedRole):
    """A reward model that is fitted to pairs, with the options of the section critic."""

    def __init__(self, context: RankContext, config: Config) -> None:
        super().__init__(context, config)
        self.section = config.critic
        task = Task("classifier", config.critic, total_steps=config.trainer.steps)
        self.backend = model = fsdp2(context, config, task)
        assert model.optimizer is not None
        self._update = PairUpdate(model.passes, model.optimizer, context.data_comm)

    @dispatch("by_place")
    def update(self, pairs: tuple[Batch, Batch]) -> dict[str, float]:
        """One optimizer step on chosen and rejected rows; means over all ranks."""
        return self._update.update(*pairs)

    @dispatch("by_place")
    def evaluate(self, pairs: tuple[Batch, Batch]) -> dict[str, float]:
        return self._update.evaluate(*pairs)
