"""placement: the pools of ranks of a run, and which role lives where.

    colocate    train: actor, rollout, reference, reward, critic, reward_model
    split       train: actor, rollout, reference, reward      aux: critic, reward_model
    standalone  train: actor, reference, reward   rollout: rollout   aux: critic, reward_model

A reference is a copy of the actor and lies beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybridengine.rlhf.config.role_names import roles_of
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.workers import Cluster, PoolSpec, WorkerGroup, create_pools
from hybridengine.wording import counted

TRAIN, ROLLOUT, AUX = "train", "rollout", "aux"


@dataclass(frozen=True)
class Roles:
    """The groups of a run; None where the config has no use for the role."""

    actor: WorkerGroup
    reward: WorkerGroup
    rollout: WorkerGroup | None = None  # offline there is none
    reference: WorkerGroup | None = None
    critic: WorkerGroup | None = None
    reward_model: WorkerGroup | None = None
    colocated: bool = True  # actor and rollout are the same ranks

    def saved(self, config: Config) -> dict[str, WorkerGroup]:
        """Those that a checkpoint consists of, by name."""
        return {role: getattr(self, role) for role in saved_roles(config)}


def saved_roles(config: Config) -> list[str]:
    """The roles that a checkpoint holds: those that train, and a reference that the warm-up made,
    which is no other checkpoint's."""
    made = config.warmup.steps and config.reference.path is None
    wanted = ("actor", "critic", *(["reference"] if made else []))
    return [role for role in wanted if role in roles_of(config)]


def pool_of(role: str, placement: str) -> str:
    """The pool in which `role` lives; placement is not auto any more."""
    if placement == "standalone" and role == "rollout":
        return ROLLOUT
    if placement != "colocate" and role in ("critic", "reward_model"):
        return AUX
    return TRAIN


def choose(config: Config, available: Mapping[str, float]) -> str:
    """The placement of the config; auto is split where there is room for both pools, of CPUs and
    of GPUs."""
    if config.trainer.placement != "auto":
        return config.trainer.placement
    specs = pool_specs(config, "split")
    asked = [(spec.num_ranks, spec.bundle()) for spec in specs.values()]
    room = all(
        sum(ranks * bundle.get(name, 0.0) for ranks, bundle in asked) <= available.get(name, 0.0)
        for name in ("CPU", "GPU")
    )
    return "split" if AUX in specs and room else "colocate"


def pool_specs(config: Config, placement: str) -> dict[str, PoolSpec]:
    """The pools that the roles need, by name."""
    trainer = config.trainer
    gpus = gpus_per_rank(config)
    sizes = {TRAIN: trainer.ranks, ROLLOUT: trainer.rollout_ranks, AUX: trainer.aux_ranks}
    needed = {pool_of(role, placement) for role in roles_of(config)}
    return {
        name: PoolSpec(size, config.cluster.cpus_per_rank, gpus)
        for name, size in sizes.items()
        if name in needed
    }


def start_roles(cluster: Cluster, config: Config) -> Roles:
    """Starts pools and roles, and brings actor and rollout together. Throws PlacementError where
    the cluster has no room, and what a role throws at its start."""
    available = cluster.available()
    placement = choose(config, available)
    pools = create_pools(cluster, pool_specs(config, placement))
    groups = {
        role: pools[pool_of(role, placement)].start_role(role, _class(role), config)
        for role in roles_of(config)
    }
    roles = Roles(**groups, colocated=pool_of("rollout", placement) == TRAIN)
    if roles.rollout is not None:
        _connect(roles, config)
    return roles


def gpus_per_rank(config: Config) -> float:
    """1 where ranks compute on GPUs, else 0: weights are moved in host memory, so auto is the
    CPU."""
    return 1.0 if config.trainer.device == "cuda" else 0.0


def idle_gpus(config: Config, available: Mapping[str, float]) -> str:
    """A sentence where GPUs are left alone without being told to; else nothing."""
    gpus = available.get("GPU", 0.0)
    if config.trainer.device != "auto" or gpus < 1:
        return ""
    return (
        f"trainer.device=auto is cpu, and {counted(int(gpus), 'GPU')} stay idle: this version "
        "moves weights in host memory only."
    )


def _connect(roles: Roles, config: Config) -> None:
    assert roles.rollout is not None
    if roles.colocated:
        roles.rollout.connect(None)
        return
    from hybridengine.rlhf.roles.transfer import Meeting

    host, port = roles.actor.open_meeting()
    meeting = Meeting(host, port, config.trainer.ranks, config.trainer.rollout_ranks)
    both = roles.actor.connect.remote(meeting), roles.rollout.connect.remote(meeting)
    for pending in both:
        pending.result()


def _class(role: str) -> Any:
    """Imported in the processes that need it, not by the controller's start."""
    if role in ("actor", "reference"):
        from hybridengine.rlhf.roles.policy import ActorRole, ReferenceRole

        return ActorRole if role == "actor" else ReferenceRole
    if role == "rollout":
        from hybridengine.rlhf.roles.rollout import RolloutRole

        return RolloutRole
    if role == "reward":
        from hybridengine.rlhf.roles.reward import RewardRole

        return RewardRole
    from hybridengine.rlhf.roles.heads import CriticRole, RewardModelRole

    return CriticRole if role == "critic" else RewardModelRole
