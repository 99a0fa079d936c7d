"""placement: starts the pools of ranks of a run and the roles in them (config/pools.py says which).

A reference is a copy of the actor and lies beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybridengine.rlhf.config.pools import pools_of
from hybridengine.rlhf.config.records import Pool
from hybridengine.rlhf.config.role_names import roles_of
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.workers import Cluster, PoolSpec, WorkerGroup, create_pools
from hybridengine.wording import counted


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


def choose(config: Config, available: Mapping[str, float]) -> str:
    """The placement of the config; auto is split where there is room for both pools, of CPUs and
    of GPUs."""
    if config.trainer.placement != "auto":
        return config.trainer.placement
    specs = pool_specs(config, pools_of(config, "split"))
    asked = [(spec.num_ranks, spec.bundle()) for spec in specs.values()]
    room = all(
        sum(ranks * bundle.get(name, 0.0) for ranks, bundle in asked) <= available.get(name, 0.0)
        for name in ("CPU", "GPU")
    )
    return "split" if len(specs) > 1 and room else "colocate"


def pool_specs(config: Config, pools: Mapping[str, Pool]) -> dict[str, PoolSpec]:
    """What each of the pools asks of the cluster, by name."""
    cpus, gpus = config.cluster.cpus_per_rank, gpus_per_rank(config)
    return {
        name: PoolSpec(
            pool.ranks,
            cpus if pool.cpus_per_rank is None else pool.cpus_per_rank,
            gpus if pool.gpus_per_rank is None else pool.gpus_per_rank,
            pool.one_host,
        )
        for name, pool in pools.items()
    }


def start_roles(cluster: Cluster, config: Config) -> Roles:
    """Starts pools and roles, and brings actor and rollout together. Throws PlacementError where
    the cluster has no room, and what a role throws at its start."""
    records = pools_of(config, choose(config, cluster.available()))
    pools = create_pools(cluster, pool_specs(config, records))
    home: dict[str, str] = {role: name for name, record in records.items() for role in record.roles}
    groups = {
        role: pools[home[role]].start_role(role, _class(role), config) for role in roles_of(config)
    }
    roles = Roles(**groups, colocated=home.get("rollout") == home["actor"])
    if roles.rollout is not None:
        _connect(roles)
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


def _connect(roles: Roles) -> None:
    assert roles.rollout is not None
    if roles.colocated:
        roles.rollout.connect(None)
        return
    from hybridengine.rlhf.roles.transfer import Meeting

    host, port = roles.actor.open_meeting()
    meeting = Meeting(host, port, roles.actor.pool.num_ranks, roles.rollout.pool.num_ranks)
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
