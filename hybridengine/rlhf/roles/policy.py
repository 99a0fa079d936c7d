"""policy: the actor, the policy that trains, and the reference, which stays as the actor began."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from hybridengine.rlhf.algorithms import sum_over
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.by_place import correction_of
from hybridengine.rlhf.config.role_names import actor_is_reference, measures_kl
from hybridengine.rlhf.config.roles import Sharding
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.roles.advantages import with_advantages
from hybridengine.rlhf.roles.backends import Task, open_backend
from hybridengine.rlhf.roles.ends import engines, shards
from hybridengine.rlhf.roles.mismatch import mismatch
from hybridengine.rlhf.roles.trained import KeptRole, TrainedRole, total_updates
from hybridengine.rlhf.roles.transfer import Meeting, Transfer, Weights, open_store
from hybridengine.rlhf.training.optimizer import local
from hybridengine.rlhf.training.ppo import PolicyLoss
from hybridengine.rlhf.training.supervised import NextTokenLoss
from hybridengine.rlhf.workers import RankContext, dispatch


class ActorRole(TrainedRole):
    def __init__(self, context: RankContext, config: Config) -> None:
        super().__init__(context, config)
        self.section = config.actor
        updates = total_updates(config, config.actor.ppo_epochs, config.critic.warmup_steps)
        task = Task(
            "policy",
            config.actor,
            temperature=config.rollout.temperature,
            total_steps=updates,
        )
        self.backend = open_backend(context, config, task)
        self._algorithm = config.algorithm.model_copy(
            update={"rollout_correction": correction_of(config)}
        )
        self._transfer: Transfer | None = None

    @dispatch("by_place")
    def supervise(self, batch: Batch) -> dict[str, float]:
        """One optimizer step of the warm-up on this rank's rows (ids, mask)."""
        return self.backend.warm_up(batch, NextTokenLoss(), self.config.warmup.lr)

    @dispatch(collect="none")
    def end_warm_up(self) -> None:
        """Frees the moments of the warm-up. What adapters have learned goes into the weights below
        them, so that without them the policy is the one from which training begins."""
        self.backend.end_warm_up()

    @dispatch("by_place", returns="reference")
    def prepare(self, shard: tuple[Batch, dict[str, list[Any]]]) -> tuple[Batch, dict[str, Any]]:
        """Rows and columns for them (mini_batch, group, baselines): the rows with these and
        old_log_probs; where adapters train and the KL is measured ref_log_probs too, without the
        adapters."""
        began = time.perf_counter()
        batch, columns = shard
        rows = {name: torch.tensor(column) for name, column in columns.items()}
        batch = batch.with_rows(**rows)
        if "old_log_probs" not in batch:
            batch = batch.with_tokens(old_log_probs=self.backend.log_probs(batch))
        if measures_kl(self.config) and actor_is_reference(self.config):
            batch = batch.with_tokens(ref_log_probs=self.backend.log_probs(batch, base=True))
        return batch, {"seconds": time.perf_counter() - began}

    @dispatch("by_place", returns="reference")
    def advantages(
        self, shard: tuple[Batch, ...], kl_coef: float, num_groups: int
    ) -> tuple[Batch, dict[str, Any]]:
        """The rows, whose columns may come apart, with advantages, returns and weights. The rows of
        the step are of groups 0 to `num_groups` - 1, which other ranks have rows of too."""
        began = time.perf_counter()
        batch = shard[0].merged(*shard[1:])
        columns, means = with_advantages(
            batch,
            self._algorithm,
            kl_coef=kl_coef,
            num_groups=num_groups,
            all_reduce=sum_over(self.context.data_comm),
        )
        batch = batch.merged(columns)
        means |= mismatch(batch, self.context.data_comm)
        return batch, {"seconds": time.perf_counter() - began, "means": means}

    @dispatch("by_place")
    def update(self, batch: Batch, kl_coef: float) -> dict[str, float]:
        """The optimizer steps of one step of training; means over all ranks."""
        peak = self.peak_flops()
        began = time.perf_counter()
        loss = PolicyLoss(self._algorithm, kl_coef)
        metrics = self.backend.update(batch, loss, self.config.actor.ppo_epochs)
        return {**metrics, "peak": peak, "seconds": time.perf_counter() - began}

    @dispatch(collect="first")
    def open_meeting(self) -> tuple[str, int]:
        """On the first rank: a store where the rollout's pool meets this one; its host and port."""
        self._store = open_store() if self.context.rank == 0 else None
        return (self.context.host, self._store.port) if self._store is not None else ("", 0)

    @dispatch(collect="none")
    def connect(self, meeting: Meeting) -> None:
        comm = meeting.join(self.context.rank, self._store)
        held = self.backend.weights()
        theirs = engines(self.config, held.spec, meeting.rollout_ranks, comm.world)
        self._transfer = Transfer(
            comm,
            src=Weights(shards(held.spec, meeting.actor_ranks), held.tensors),
            dst=Weights(theirs, None),
        )

    @dispatch()
    def send(self) -> dict[str, float]:
        """This rank's end of a transfer to a rollout in a pool of its own."""
        self.source()
        assert self._transfer is not None, "connect() comes first"
        return self._transfer.run()

    def source(self) -> Mapping[str, torch.Tensor]:
        """The shards that a transfer reads, brought up to date where they are not the weights
        themselves."""
        return self.backend.weights().tensors


class ReferenceRole(KeptRole):
    """The policy that the KL is measured to: of `reference.path`, or the actor as it was when
    freeze() was called."""

    def __init__(self, context: RankContext, config: Config) -> None:
        super().__init__(context, config)
        offload = {"param_offload": config.reference.param_offload}
        sharding = _sharding_of(config).model_copy(update=offload)
        temperature = config.rollout.temperature
        task = Task("policy", sharding, config.reference.path, temperature)
        self.backend = open_backend(context, config, task)

    @dispatch(collect="none")
    def freeze(self) -> None:
        """Takes the actor's weights as they are now, shard by shard: both are cut the same way."""
        if self.config.reference.path is None:
            actor: Any = self.context.roles["actor"]
            ours = self.backend.weights().tensors
            with torch.no_grad():
                for name, theirs in actor.source().items():
                    local(ours[name]).copy_(local(theirs))

    @dispatch("by_place", returns="reference")
    def log_probs(self, batch: Batch) -> tuple[Batch, dict[str, Any]]:
        """The column ref_log_probs."""
        began = time.perf_counter()
        columns = {"ref_log_probs": self.backend.log_probs(batch)}
        return Batch(batch.lengths, columns), {"seconds": time.perf_counter() - began}


def _sharding_of(config: Config) -> Sharding:
    """The actor's, without what only training needs."""
    fields = {name: getattr(config.actor, name) for name in Sharding.model_fields}
    return Sharding(**{**fields, "activation_checkpointing": False})
