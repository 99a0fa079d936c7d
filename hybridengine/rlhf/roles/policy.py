"""policy: the actor, the policy that trains, and the reference, which stays as the actor began."""

from __future__ import annotations

import time
from typing import Any

import torch

from hybridengine.rlhf.algorithms import sum_over
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.by_place import correction_of
from hybridengine.rlhf.config.role_names import actor_is_reference, measures_kl
from hybridengine.rlhf.config.roles import Sharding
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.roles.advantages import with_advantages
from hybridengine.rlhf.roles.ends import engines, shards, spec_of
from hybridengine.rlhf.roles.mismatch import mismatch
from hybridengine.rlhf.roles.sharded import sharded_model
from hybridengine.rlhf.roles.trained import TrainedRole, reason, total_updates
from hybridengine.rlhf.roles.transfer import Meeting, Transfer, Weights, open_store
from hybridengine.rlhf.training.lora import fold_adapters, merged_tensors, without_adapters
from hybridengine.rlhf.training.optimizer import local
from hybridengine.rlhf.training.passes import Passes
from hybridengine.rlhf.training.ppo import PolicyUpdate
from hybridengine.rlhf.training.state import load_state, save_state
from hybridengine.rlhf.training.supervised import SupervisedUpdate
from hybridengine.rlhf.workers import RankContext, Role, dispatch


class ActorRole(TrainedRole):
    def __init__(self, context: RankContext, config: Config) -> None:
        super().__init__(context, config, config.actor)
        actor = config.actor
        self.hold("policy", lora=actor.lora)
        self.passes = self.make_passes(config.rollout.temperature)
        updates = total_updates(config, actor.ppo_epochs, config.critic.warmup_steps)
        self.optimizer = self.make_optimizer(actor.lr, updates)
        self._algorithm = config.algorithm.model_copy(
            update={"rollout_correction": correction_of(config)}
        )
        self._update = PolicyUpdate(self.passes, self.optimizer, config, context.data_comm)
        self._merged = merged_tensors(self.module) if actor.lora.enable else None
        self._transfer: Transfer | None = None
        self._supervised: SupervisedUpdate | None = None

    @dispatch("by_place")
    def supervise(self, batch: Batch) -> dict[str, float]:
        """One optimizer step of the warm-up on this rank's rows (ids, mask)."""
        if self._supervised is None:
            optimizer = self.make_steady_optimizer(self.config.warmup.lr)
            passes = self.make_passes()
            comm, seed = self.context.comm, self.config.seed
            self._supervised = SupervisedUpdate(passes, optimizer, comm, seed)
        return self._supervised.update(batch)

    @dispatch(collect="none")
    def end_warm_up(self) -> None:
        """Frees the moments of the warm-up. What adapters have learned goes into the weights below
        them, so that without them the policy is the one from which training begins."""
        self._supervised = None
        fold_adapters(self.module)
        self.optimizer.masters.take_in()

    @dispatch("by_place", returns="reference")
    def prepare(self, shard: tuple[Batch, dict[str, list[Any]]]) -> tuple[Batch, dict[str, Any]]:
        """Rows and columns for them (mini_batch, group, baselines): the rows with these and
        old_log_probs; where adapters train and the KL is measured ref_log_probs too, without the
        adapters."""
        began = time.perf_counter()
        self.wake()
        batch, columns = shard
        rows = {name: torch.tensor(column) for name, column in columns.items()}
        batch = batch.with_rows(**rows)
        if "old_log_probs" not in batch:
            batch = batch.with_tokens(old_log_probs=self.passes.log_probs(batch))
        if measures_kl(self.config) and actor_is_reference(self.config):
            with without_adapters(self.module):
                batch = batch.with_tokens(ref_log_probs=self.passes.log_probs(batch))
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
        metrics = self._update.update(batch, kl_coef=kl_coef)
        return {**metrics, "peak": peak, "seconds": time.perf_counter() - began}

    @dispatch(collect="first")
    def open_meeting(self) -> tuple[str, int]:
        """On the first rank: a store where the rollout's pool meets this one; its host and port."""
        self._store = open_store() if self.context.rank == 0 else None
        return (self.context.host, self._store.port) if self._store is not None else ("", 0)

    @dispatch(collect="none")
    def connect(self, meeting: Meeting) -> None:
        comm = meeting.join(self.context.rank, self._store)
        spec = spec_of(self.module, self.config.actor)
        theirs = engines(self.config, spec, meeting.rollout_ranks, comm.world)
        self._transfer = Transfer(
            comm,
            src=Weights(shards(spec, meeting.actor_ranks), self.source()),
            dst=Weights(theirs, None),
        )

    @dispatch()
    def send(self) -> dict[str, float]:
        """This rank's end of a transfer to a rollout in a pool of its own."""
        self.refresh_source()
        assert self._transfer is not None, "connect() comes first"
        return self._transfer.run()

    def source(self) -> torch.nn.Module | dict[str, torch.Tensor]:
        """The shards that a transfer reads: the module's, or with adapters merged ones."""
        return self.module if self._merged is None else self._merged

    def refresh_source(self) -> None:
        """Brings source() up to date, where it is not the weights themselves."""
        if self._merged is not None:
            merged_tensors(self.module, self._merged)


class ReferenceRole(Role):
    """The policy that the KL is measured to: of `reference.path`, or the actor as it was when
    freeze() was called."""

    def __init__(self, context: RankContext, config: Config) -> None:
        super().__init__(context, config)
        offload = {"param_offload": config.reference.param_offload}
        sharding = _sharding_of(config).model_copy(update=offload)
        path = config.reference.path
        self.module = sharded_model(context, config, "policy", sharding, path, trains=False)
        self._passes = Passes(self.module, sharding, config.rollout.temperature, comm=context.comm)

    @dispatch(collect="none")
    def freeze(self) -> None:
        """Takes the actor's weights as they are now, shard by shard: both are cut the same way."""
        if self.config.reference.path is None:
            actor: Any = self.context.roles["actor"]
            pairs = zip(actor.module.parameters(), self.module.parameters(), strict=True)
            with torch.no_grad():
                for theirs, ours in pairs:
                    local(ours).copy_(local(theirs))

    @dispatch(collect="first")
    def save(self, folder: str) -> str:
        """Returns why it could not be written, nothing where it was."""
        return reason(lambda: save_state(folder, self.module, None, self.context.progress))

    @dispatch(collect="none")
    def restore(self, folder: str) -> None:
        load_state(folder, self.module, None, self.context.progress)

    @dispatch("by_place", returns="reference")
    def log_probs(self, batch: Batch) -> tuple[Batch, dict[str, Any]]:
        """The column ref_log_probs."""
        began = time.perf_counter()
        columns = {"ref_log_probs": self._passes.log_probs(batch)}
        return Batch(batch.lengths, columns), {"seconds": time.perf_counter() - began}


def _sharding_of(config: Config) -> Sharding:
    """The actor's, without what only training needs."""
    fields = {name: getattr(config.actor, name) for name in Sharding.model_fields}
    return Sharding(**{**fields, "activation_checkpointing": False})
