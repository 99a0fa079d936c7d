"""reservation: room in the cluster for the ranks of pools, for all of them or for none."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from hybridengine._core import UsageError

# Of a CPU for a rank: with less, ranks are slower than fewer of them.
_LEAST_SHARE = 0.1


class PlacementError(UsageError):
    """Pools ask for more than the cluster has, or has free. Nothing stays reserved."""


@dataclass(frozen=True)
class PoolSpec:
    """What a pool asks for. `one_host`: all its ranks on the same host; else on as few as can be.
    `env`: variables of its processes, set before torch is loaded."""

    num_ranks: int
    cpus_per_rank: float = 1.0
    gpus_per_rank: float = 0.0
    one_host: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    def bundle(self) -> dict[str, float]:
        """What Ray reserves for one rank; empty where a rank asks for nothing."""
        asked = {"CPU": self.cpus_per_rank, "GPU": self.gpus_per_rank}
        return {name: number for name, number in asked.items() if number > 0}

    def __str__(self) -> str:
        each = " and ".join(f"{number:g} {name}" for name, number in self.bundle().items())
        where = " on one host" if self.one_host else ""
        return f"{self.num_ranks} ranks of {each or 'no CPU'}{where}"


def available() -> dict[str, float]:
    """Free CPUs and GPUs of all hosts together. Ray leaves out what there is none of."""
    free = ray.available_resources()  # type: ignore[no-untyped-call]
    return {name: free.get(name, 0.0) for name in ("CPU", "GPU")}


def check_total(specs: Mapping[str, PoolSpec]) -> None:
    """Throws PlacementError where all the hosts together, or the largest, are too small: waiting
    would not help."""
    hosts = _hosts()
    for name in ("CPU", "GPU"):
        total = sum(host.get(name, 0.0) for host in hosts)
        largest = max((host.get(name, 0.0) for host in hosts), default=0.0)
        together = sum(spec.num_ranks * spec.bundle().get(name, 0.0) for spec in specs.values())
        apart = (
            spec.num_ranks * spec.bundle().get(name, 0.0)
            for spec in specs.values()
            if spec.one_host
        )
        if together > total or max(apart, default=0.0) > largest:
            raise PlacementError(_message(specs, "ranks cannot be placed", available()))


def reserve(specs: Mapping[str, PoolSpec], timeout_s: float) -> dict[str, PlacementGroup | None]:
    """A placement group for every pool, with one bundle a rank; None where ranks ask for nothing.

    Blocks until all are granted. Throws PlacementError after `timeout_s`.
    """
    before = available()
    groups: dict[str, PlacementGroup | None] = {}
    deadline = time.monotonic() + timeout_s
    try:
        for name, spec in specs.items():
            strategy = "STRICT_PACK" if spec.one_host else "PACK"
            bundles = [spec.bundle()] * spec.num_ranks
            groups[name] = placement_group(bundles, strategy=strategy) if spec.bundle() else None
        for group in groups.values():
            left_s = math.ceil(max(0.0, deadline - time.monotonic()))  # Ray cuts to whole seconds
            if group is not None and not group.wait(left_s):
                what = f"ranks were not placed within {timeout_s:g} s"
                raise PlacementError(_message(specs, what, before))
    except BaseException:
        release(groups)
        raise
    return groups


def release(groups: Mapping[str, PlacementGroup | None]) -> None:
    for group in groups.values():
        if group is not None:
            remove_placement_group(group)


def _message(specs: Mapping[str, PoolSpec], what: str, free: Mapping[str, float]) -> str:
    asked = ", ".join(f"pool {name} asks for {spec}" for name, spec in specs.items())
    hosts = _hosts()
    there_is = " and ".join(
        f"{free[name]:g} of {sum(host.get(name, 0.0) for host in hosts):g} {name}"
        for name in ("CPU", "GPU")
    )
    each = ", ".join(f"{host.get('CPU', 0.0):g} CPU" for host in hosts)
    spread = f" on {len(hosts)} hosts with {each}" if len(hosts) > 1 else ""
    return f"{what}: {asked}; available are {there_is}{spread}. {_mend(specs, hosts)}"


def _mend(specs: Mapping[str, PoolSpec], hosts: list[dict[str, Any]]) -> str:
    """What to ask for instead, with a number where one is enough."""
    gpus = sum(host.get("GPU", 0.0) for host in hosts)
    wanted = sum(spec.num_ranks * spec.gpus_per_rank for spec in specs.values())
    if wanted > gpus:
        fewer = "" if gpus == 0 else ", or ask for fewer ranks (trainer.ranks)"
        return f"Use trainer.device=cpu (or auto){fewer}."
    cpus = sum(host.get("CPU", 0.0) for host in hosts)
    ranks = sum(spec.num_ranks for spec in specs.values())
    share = math.floor(100 * cpus / ranks) / 100
    least = max(spec.cpus_per_rank for spec in specs.values())
    less = "for less of a CPU each (cluster.cpus_per_rank)"
    if len(hosts) == 1 and _LEAST_SHARE <= share < least:
        less = f"for less of a CPU each: cluster.cpus_per_rank={share:g}"
    keys = "trainer.ranks, rollout_ranks, aux_ranks, or pools.NAME.ranks"
    return f"Ask for fewer ranks ({keys}), or {less}."


def _hosts() -> list[dict[str, Any]]:
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Resources"] for node in nodes if node["Alive"]]
