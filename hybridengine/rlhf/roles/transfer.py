"""transfer: weights from where they train to where they are used, however either end holds them.

Each end says by a layout which rank of a communicator has which part, and hands over the tensors of
its own rank. What is lacking is planned once, and moved at every run. Which layouts there are, and
whose, is in ends.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from hybridengine import Communicator, Layout, Resharder


@dataclass(frozen=True)
class Weights:
    """One end. `layout`: over the ranks of the transfer, the same on all of them, with the type of
    the tensors. `tensors`: this rank's part, a module or by name; None on ranks without one."""

    layout: Layout
    tensors: torch.nn.Module | Mapping[str, torch.Tensor] | None


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
    """One rank's part in moving `src` into the memory of `dst`; collective over the ranks of
    `comm`. `dst` has tensors by name, which are written in place at each run."""

    def __init__(self, comm: Communicator, src: Weights, dst: Weights) -> None:
        assert not isinstance(dst.tensors, torch.nn.Module), "tensors by name are written"
        self._resharder = Resharder(
            src.tensors, src.layout, dst.layout, comm=comm, out=dst.tensors or None
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
