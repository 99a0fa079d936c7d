"""pool: ranks that form one torch.distributed world, each a process, and the roles that they hold.

Ranks find each other through a store on rank 0's host. The secret by which they know each other
travels in the arguments of the actors, never through the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hybridengine._core import UsageError
from hybridengine.processes.search_path import current_folder
from hybridengine.rlhf.workers import reservation
from hybridengine.rlhf.workers.cluster import Cluster
from hybridengine.rlhf.workers.group import WorkerGroup, sending
from hybridengine.rlhf.workers.rank import ASIDE, RankProcess
from hybridengine.rlhf.workers.reference import Reference
from hybridengine.rlhf.workers.reservation import PoolSpec
from hybridengine.rlhf.workers.role import Role
from hybridengine.rlhf.workers.waiting import Call, wait_for

# Every rank computes on one thread unless its pool's env says otherwise: threads of several ranks
# that spin for work starve each other. Nothing is looked up on the network while ranks start.
_ENV = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

# Ranks that start import torch, roles load models: they are given no less than this.
_START_S = 120.0


class Pool:
    """Made by create() or create_pools()."""

    def __init__(
        self, cluster: Cluster, name: str, spec: PoolSpec, room: PlacementGroup | None
    ) -> None:
        """Starts the processes; they are usable once they have met."""
        self.cluster, self.name, self.num_ranks = cluster, name, spec.num_ranks
        self.hosts = ["not known yet"] * spec.num_ranks
        self.roles: list[str] = []
        self._room = room
        self._failure: Exception | None = None
        env = {**_ENV, "HYBRIDENGINE_TOKEN": cluster.token, **spec.env}
        folder = current_folder()
        actor = ray.remote(concurrency_groups=ASIDE)(RankProcess)  # type: ignore[call-overload]
        self.processes = [
            actor.options(
                num_cpus=spec.cpus_per_rank,
                num_gpus=spec.gpus_per_rank,
                **({} if room is None else _in_bundle(room, rank)),
            ).remote(name, rank, spec.num_ranks, env, folder)
            for rank in range(spec.num_ranks)
        ]
        self._prepared = self._submit("prepare")  # every pool's ranks import torch at the same time
        self.ends = [self.watch(rank, "end") for rank in range(spec.num_ranks)]
        cluster.pools.append(self)

    @staticmethod
    def create(
        cluster: Cluster,
        name: str,
        num_ranks: int,
        *,
        cpus_per_rank: float | None = None,
        gpus_per_rank: float = 0.0,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Pool:
        """One pool; see create_pools. `cpus_per_rank` and `timeout_s` (of the placement) are those
        of the cluster's config unless given."""
        cpus = cluster.config.cpus_per_rank if cpus_per_rank is None else cpus_per_rank
        spec = PoolSpec(num_ranks, cpus, gpus_per_rank, env={} if env is None else env)
        return create_pools(cluster, {name: spec}, timeout_s=timeout_s)[name]

    def start_role(self, name: str, role: type[Role], config: Any = None) -> WorkerGroup:
        """Makes `role(context, config)` on every rank, under a name not in use. Blocks until all
        have. The class must be importable on the ranks, or picklable. Throws UsageError where its
        places do not divide the ranks."""
        self.check()
        if name in self.roles:
            raise UsageError(
                f"pool {self.name!r} holds a role {name!r} already. Give it another name."
            )
        place_size = role.place_size(config)
        if self.num_ranks % place_size:
            raise UsageError(
                f"role {name!r} has places of {place_size} ranks, which do not divide the "
                f"{self.num_ranks} of pool {self.name!r}. Use a pool of a multiple of them."
            )
        with sending(f"role {name!r} ({role.__name__}) and its config"):
            sent = self._submit("start_role", name, role, config)
        self.roles.append(name)
        self._wait(name, "__init__", sent)
        return WorkerGroup(self.cluster, self, name, role, place_size)

    def watch(self, rank: int, method: str) -> Any:
        """A method that is answered while another one runs."""
        return getattr(self.processes[rank], method).options(concurrency_group="watch").remote()

    def cut(self, piece: Reference, parts: list[list[int]]) -> list[Any]:
        """Ray's refs of the parts of what a rank of this pool made; see RankProcess.cut."""
        process = self.processes[piece.rank]
        sent = process.cut.options(concurrency_group="rows", num_returns=len(parts))
        refs: list[Any] = sent.remote(piece, parts)
        return refs

    def meet(self) -> None:
        """The ranks find each other. Blocks, and throws what a rank raised."""
        places = self._wait("", "prepare", self._prepared)
        self.hosts = [host for host, _ in places]
        self._wait("", "join", self._submit("join", *places[0]))

    def check(self) -> None:
        """Throws what ended the pool, or UsageError where it was closed."""
        if self._failure is not None:
            raise self._failure
        if self not in self.cluster.pools:
            raise UsageError(f"pool {self.name!r} is closed. Create another one.")

    def close(self, failure: Exception | None = None) -> None:
        """Kills the ranks and gives back their places. `failure`: what later calls raise."""
        if self not in self.cluster.pools:
            return
        self.cluster.pools.remove(self)
        self._failure = failure
        for process in self.processes:
            ray.kill(process)
        reservation.release({self.name: self._room})

    def _submit(self, method: str, *args: Any) -> list[Any]:
        """`method` of RankProcess on every rank, with the same arguments: Ray's refs, by rank."""
        return [getattr(process, method).remote(*args) for process in self.processes]

    def _wait(self, role: str, method: str, refs: list[Any]) -> list[Any]:
        limit_s = max(self.cluster.config.timeout_s, _START_S)
        return wait_for(Call(self.cluster, self, role, method, refs, limit_s))


def create_pools(
    cluster: Cluster, specs: Mapping[str, PoolSpec], *, timeout_s: float | None = None
) -> dict[str, Pool]:
    """All of the pools or none, by name, started at the same time.

    Blocks until all ranks have their places, at most `timeout_s` (config: placement_timeout_s), and
    their ranks have met. Throws PlacementError, after which nothing stays reserved; WorkerError
    where a rank did not start.
    """
    cluster.check()
    for name, spec in specs.items():
        if spec.num_ranks < 1:
            raise UsageError(f"pool {name!r} has {spec.num_ranks} ranks. Use 1 or more.")
        if any(pool.name == name for pool in cluster.pools):
            raise UsageError(f"the cluster has a pool {name!r} already. Give it another name.")
    if cluster.local:
        reservation.check_total(specs)
    limit_s = cluster.config.placement_timeout_s if timeout_s is None else timeout_s
    places = reservation.reserve(specs, limit_s)
    pools = {name: Pool(cluster, name, spec, places[name]) for name, spec in specs.items()}
    for pool in pools.values():
        pool.meet()
    return pools


def _in_bundle(room: PlacementGroup, rank: int) -> dict[str, Any]:
    strategy = PlacementGroupSchedulingStrategy(room, placement_group_bundle_index=rank)
    return {"scheduling_strategy": strategy}
