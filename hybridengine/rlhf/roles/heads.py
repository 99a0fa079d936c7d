"""heads: models with one number as output: the critic, and a reward model."""

from __future__ import annotations

import time
from typing import Any

from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.roles import Sharding
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.roles.schedule import total_updates
from hybridengine.rlhf.roles.tokenizer import open_tokenizer
from hybridengine.rlhf.training.models import build_model, weight_dtype
from hybridengine.rlhf.training.optimizer import ShardedAdamW
from hybridengine.rlhf.training.passes import Passes
from hybridengine.rlhf.training.ppo import ValueUpdate
from hybridengine.rlhf.training.sharding import shard
from hybridengine.rlhf.training.state import export_hf, load_state, save_state
from hybridengine.rlhf.training.supervised import PairUpdate
from hybridengine.rlhf.workers import RankContext, Role, dispatch


class CriticRole(Role):
    def __init__(self, context: RankContext, config: Config) -> None:
        super().__init__(context, config)
        critic = config.critic
        module = build_model(config.model, "value", weight_dtype(critic), config.seed, critic.path)
        self._module = shard(module, critic, context.mesh)
        self._passes = Passes(self._module, critic, comm=context.comm)
        self._optimizer = ShardedAdamW(
            self._module,
            critic.optimizer,
            critic.lr,
            comm=context.comm,
            total_steps=total_updates(config, critic.ppo_epochs),
            offload=critic.optimizer_offload,
        )
        self._update = ValueUpdate(self._passes, self._optimizer, config, context.comm)

    @dispatch("by_rank", returns="reference")
    def values(self, batch: Batch) -> tuple[Batch, dict[str, Any]]:
        """The columns values and last_values."""
        began = time.perf_counter()
        values, last_values = self._passes.values(batch)
        columns = Batch(batch.lengths, {"values": values}, {"last_values": last_values})
        return columns, {"seconds": time.perf_counter() - began}

    @dispatch("by_rank")
    def update(self, batch: Batch) -> dict[str, float]:
        """The optimizer steps of one step of training; means over all ranks."""
        began = time.perf_counter()
        return {**self._update.update(batch), "seconds": time.perf_counter() - began}

    @dispatch(collect="none")
    def save(self, folder: str) -> None:
        save_state(folder, self._module, self._optimizer)

    @dispatch(collect="none")
    def restore(self, folder: str) -> None:
        load_state(folder, self._module, self._optimizer)


class RewardModelRole(Role):
    """Scores responses with a sequence-classification model, which does not train."""

    def __init__(self, context: RankContext, config: Config) -> None:
        super().__init__(context, config)
        model = config.reward_model
        sharding = Sharding(strategy=model.strategy, param_offload=model.offload)
        sharding.max_tokens_per_gpu = config.actor.max_tokens_per_gpu
        module = build_model(
            config.model, "classifier", weight_dtype(sharding), config.seed, model.path
        )
        self._module = shard(module.requires_grad_(False), sharding, context.mesh)
        self._passes = Passes(self._module, sharding, comm=context.comm)

    @dispatch("by_rank", returns="reference")
    def score(self, batch: Batch) -> tuple[Batch, dict[str, Any]]:
        """The column model_scores: of prompt and response, with the policy's tokens."""
        began = time.perf_counter()
        scores = self._passes.scores(batch)
        columns = Batch(batch.lengths, {}, {"model_scores": scores})
        return columns, {"seconds": time.perf_counter() - began}


class RewardTrainRole(Role):
    """A reward model that is fitted to pairs, with the options of the section critic."""

    def __init__(self, context: RankContext, config: Config) -> None:
        super().__init__(context, config)
        critic = config.critic
        module = build_model(config.model, "classifier", weight_dtype(critic), config.seed)
        self._module = shard(module, critic, context.mesh)
        passes = Passes(self._module, critic, comm=context.comm)
        optimizer = ShardedAdamW(
            self._module,
            critic.optimizer,
            critic.lr,
            comm=context.comm,
            total_steps=config.trainer.steps,
            offload=critic.optimizer_offload,
        )
        self._update = PairUpdate(passes, optimizer, context.comm)

    @dispatch("by_rank")
    def update(self, pairs: tuple[Batch, Batch]) -> dict[str, float]:
        """One optimizer step on chosen and rejected rows; means over all ranks."""
        return self._update.update(*pairs)

    @dispatch("by_rank")
    def evaluate(self, pairs: tuple[Batch, Batch]) -> dict[str, float]:
        return self._update.evaluate(*pairs)

    @dispatch(collect="none")
    def export(self, folder: str) -> None:
        """A HF checkpoint with the tokenizer, from the first rank."""
        tokenizer = open_tokenizer(self.config) if self.context.rank == 0 else None
        export_hf(self._module, tokenizer, folder)
