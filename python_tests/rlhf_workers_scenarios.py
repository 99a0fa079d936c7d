"""Roles of the tests of workers, and what a controller of its own does. Ranks import this: it
needs no pytest."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import hybridengine
from hybridengine import UsageError, _core, barrier
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.workers import RankContext, Role, dispatch

SECONDS_OF_A_STUCK_RANK = 60


def rows_of(rank: int) -> Batch:
    """Three rows of lengths 1, 2, 3; token t of row b is 100 rank + 10 b + t."""
    ids = [100 * rank + 10 * row + token for row in range(3) for token in range(row + 1)]
    return Batch(
        torch.tensor([1, 2, 3]),
        tokens={"ids": torch.tensor(ids), "logps": torch.tensor(ids, dtype=torch.bfloat16)},
        rows={"truncated": torch.tensor([True, False, rank == 1])},
        objects={"prompt": [f"{rank}-{row}" for row in range(3)]},
    )


class Worker(Role):
    """Answers, keeps values, and fails in all the ways."""

    def __init__(self, context: RankContext, config: Any) -> None:
        super().__init__(context, config)
        self.kept: list[torch.Tensor] = []
        if config == "raise in __init__":
            raise ValueError("no such model.")

    @dispatch()
    def traced(self, name: str) -> None:
        with _core.TraceSpan("rlhf", name):
            pass

    @dispatch()
    def process(self) -> dict[str, Any]:
        context = self.context
        return {
            "pid": os.getpid(),
            "ranks": (context.rank, context.world, dist.get_rank(), dist.get_world_size()),
            "comm": (context.comm.rank, context.comm.world),
            "mesh": (tuple(context.mesh.mesh.shape), context.mesh.get_local_rank()),
            "device": str(context.device),
            "threads": torch.get_num_threads(),
            "env": {name: os.environ.get(name) for name in ("HF_HUB_OFFLINE", "OF_THIS_POOL")},
            "folder": os.getcwd(),
            "package": hybridengine.__file__,
            "config": self.config,
            "roles": sorted(context.roles),
        }

    @dispatch()
    def sum_of_ranks(self) -> list[float]:
        """Over the torch group, and over the engine's communicator."""
        value = torch.tensor(float(self.context.rank + 1))
        dist.all_reduce(value, group=self.context.group)
        parts = []
        with self.context.comm.call():
            parts = self.context.comm.all_gather(bytes([self.context.rank + 1]))
        return [float(value), float(sum(part[0] for part in parts))]

    @dispatch()
    def echo(self, value: Any, *, times: int = 1) -> Any:
        return [value] * times

    @dispatch("by_place")
    def scale(self, number: float, factor: float) -> float:
        return number * factor

    @dispatch(collect="first")
    def first(self) -> int:
        return self.context.rank

    @dispatch(collect="last")
    def last(self) -> int:
        return self.context.rank

    @dispatch(collect="none")
    def nothing(self) -> int:
        return self.context.rank

    @dispatch(returns="reference")
    def make_rows(self) -> tuple[Batch, str]:
        return rows_of(self.context.rank), f"rows of {self.context.rank}"

    @dispatch(returns="reference")
    def make_zeros(self, num_elems: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(num_elems), os.getpid()

    @dispatch(returns="reference")
    def forget_summary(self) -> torch.Tensor:
        return torch.zeros(1)

    @dispatch("by_place")
    def ids(self, batch: Batch) -> tuple[list[int], list[float], list[bool], list[str]]:
        return (
            batch["ids"].tolist(),
            batch["logps"].tolist(),
            batch["truncated"].tolist(),
            batch["prompt"],
        )

    @dispatch()
    def types(self, *values: Any) -> list[str]:
        return [type(value).__name__ for value in values]

    @dispatch()
    def add_one_in_place(self, values: torch.Tensor) -> float:
        values += 1
        self.kept.append(values)
        return float(values.sum())

    @dispatch()
    def fail_on_1(self, how: str) -> int:
        """Rank 1 fails, the others lose it in a collective of torch."""
        if self.context.rank == 1:
            _fail(how)
        dist.barrier()
        return self.context.rank

    @dispatch()
    def fail_on_1_in_engine(self, how: str) -> int:
        if self.context.rank == 1:
            _fail(how)
        barrier(comm=self.context.comm)
        return self.context.rank

    @dispatch()
    def slow_but_alive(self, seconds: float) -> int:
        """Rank 0 gets on, the others wait for it."""
        until = time.monotonic() + seconds
        while self.context.rank == 0 and time.monotonic() < until:
            time.sleep(0.1)
            self.context.progress()
        barrier(comm=self.context.comm)
        return self.context.rank

    @dispatch()
    def unpicklable(self) -> Any:
        return (each for each in range(3))

    def hidden(self) -> None:
        """Not decorated."""


class Paired(Role):
    """Two ranks that share a place."""

    @classmethod
    def place_size(cls, config: Any) -> int:
        return 2

    @dispatch()
    def whereabouts(self) -> tuple[int, int, int, int, int]:
        context = self.context
        inside, across = context.place_comm, context.data_comm
        return context.place, context.num_places, inside.rank, inside.world, across.world

    @dispatch("by_place")
    def first_id(self, batch: Batch) -> tuple[int, int]:
        return self.context.rank, int(batch["ids"][0])

    @dispatch("by_place", returns="reference")
    def doubled(self, batch: Batch) -> tuple[Batch, int]:
        return batch.with_tokens(ids=2 * batch["ids"]), self.context.rank


class Reader(Role):
    """Reads what another role of the same rank keeps."""

    @dispatch()
    def kept(self) -> list[float]:
        worker = self.context.roles["worker"]
        assert isinstance(worker, Worker)
        return [float(values.sum()) for values in worker.kept]


def _fail(how: str) -> None:
    if how == "value":
        raise ValueError("the loss is not finite.")
    if how == "usage":
        raise UsageError("row 3 of train.jsonl has no prompt. Add one.")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "exit":
        os._exit(3)
    time.sleep(SECONDS_OF_A_STUCK_RANK)


def controller(folder: str) -> None:
    """Starts a cluster with two ranks, writes its process numbers, and waits in a call for longer
    than the test has."""
    from hybridengine.rlhf.config import schema
    from hybridengine.rlhf.workers import Cluster, Pool

    with Cluster.start(schema.Cluster(), num_cpus=2) as cluster:
        pool = Pool.create(cluster, "train", 2)
        worker = pool.start_role("worker", Worker)
        pids = [each["pid"] for each in worker.process()]
        part = Path(folder) / "part"
        part.write_text(" ".join(str(pid) for pid in pids))
        part.rename(Path(folder) / "pids")
        worker.fail_on_1("sleep")
