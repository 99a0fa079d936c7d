"""transfer: the weights from the shards that train to the engines that generate.

The ranks of a *transfer* are the actor's, and after them those of the rollout where it has a pool
of its own; in a colocated pool each rank is both. What each engine lacks is planned once, and moved
at every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from hybridengine import Communicator, LayoutRule, Resharder, Spec, empty
from hybridengine.rlhf.config.roles import Actor
from hybridengine.rlhf.training.models import shard_dtype


def spec_of(module: torch.nn.Module, actor: Actor) -> Spec:
    """The tensors of a transformers module in the type in which the actor's shards hold them."""
    dtype = str(shard_dtype(actor, trains=True)).removeprefix("torch.")
    return Spec.from_config(module.config, dtype)


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of two pools find each other. `host` and `port` are of a store that the first
    rank of the actor holds."""

    host: str
    port: int
    actor_ranks: int
    rollout_ranks: int

    def join(self, rank: int, store: Any | None = None) -> Communicator:
        """`rank` counts the actor's ranks first. Blocks until all have joined."""
        world = self.actor_ranks + self.rollout_ranks
        if store is None:
            store = dist.TCPStore(  # type: ignore[attr-defined]
                self.host, self.port, is_master=False
            )
        return Communicator(store, rank, world, name="transfer")


def open_store() -> Any:
    """A store on this host, at a port that the system chose."""
    return dist.TCPStore(  # type: ignore[attr-defined]
        "0.0.0.0", 0, is_master=True, wait_for_workers=False
    )


class Transfer:
    """One rank's end; collective over the ranks of `comm`.

    `source`: this rank's shards, a module or tensors by name, None on ranks that only generate.
    `actor_ranks`: the first ranks of the communicator, which train. The engines are on the last
    `rollout_ranks` ranks, groups of `tp_size` sharing one. Destination tensors are this object's
    own, of `dtype`: written in place at each run.
    """

    def __init__(
        self,
        comm: Communicator,
        spec: Spec,
        source: torch.nn.Module | Mapping[str, torch.Tensor] | None,
        *,
        actor_ranks: int,
        rollout_ranks: int,
        tp_size: int,
        dtype: str,
    ) -> None:
        src = LayoutRule.parse(f"fsdp2({actor_ranks})").bind(spec)
        first = comm.world - rollout_ranks
        place = f"{first}-{comm.world - 1}"
        replicas = rollout_ranks // tp_size
        rule = (
            f"replicated({replicas})@{place}"
            if tp_size == 1
            else f"tensor_parallel({tp_size},replicas={replicas})@{place}"
        )
        dst = LayoutRule.parse(rule).bind(spec.with_dtype(dtype))
        self.tensors: dict[str, torch.Tensor] = {}
        if comm.rank >= first:
            self.tensors = empty(dst, comm.rank)
        self._resharder = Resharder(
            source, src, dst, comm=comm, out=self.tensors or None, dtype=dtype
        )

    def run(self) -> dict[str, float]:
        """Moves the weights as they are now; blocks until this rank has its own. Bytes of this
        rank, received and those it had to receive at least."""
        self._resharder.run()
        report = self._resharder.report
        assert report is not None
        return {
            "received_bytes": float(report.received_bytes),
            "bound_bytes": float(report.bound_bytes),
            "seconds": report.seconds,
        }
