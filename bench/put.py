"""A put from rank 0 into a region of rank 1, with a word that rides on it, and the answer.

A row per size.

What one link takes, without plans and calls: the least that any bucket pays, and how fast a medium
is by itself. Asked for from Python, which adds a few microseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridengine import TransportError, _core
from hybridengine._bench import move
from hybridengine._bench.flags import Options
from hybridengine._bench.index import INDEX
from hybridengine._bench.record import Bench, Case, Volume
from hybridengine._bench.world import World

_SOURCE, _DESTINATION = 0, 1
_SAID = 3  # a kind of message: that something is granted
_PATIENCE_S = 20.0


@dataclass
class PutJob:
    world: World
    fabric: _core.Fabric
    region: _core.Region  # of this rank; rank 1's is written
    target: int  # the number of rank 1's
    source: np.ndarray
    number: int = 0

    @property
    def peer(self) -> int:
        return _DESTINATION - self.world.rank

    def next(self, kind: str) -> tuple[Any, ...]:
        """What comes next and is of that kind."""
        while arrivals := self.fabric.poll(_PATIENCE_S):
            for arrival in arrivals:
                if arrival[0] in (kind, "lost"):
                    break
            else:
                continue
            if arrival[0] == "lost":
                raise TransportError(f"rank {arrival[1]} was lost: {arrival[2]}")
            return arrival
        raise TransportError(f"nothing came within {_PATIENCE_S} s")


def _cases(options: Options) -> list[Case]:
    return [Case(size, "uint8") for size in options.sizes()]


def _setup(world: World, options: Options, case: Case, in_place: bool) -> PutJob:
    group = world.gather(f"put {os.getpid()} {id(case)}")[0]
    fabric = _core.Fabric.make(world.comm.transport, world.rank, world.size, group)
    addresses: list[Any] = [bytes.fromhex(each) for each in world.gather(fabric.address().hex())]
    fabric.connect(addresses, _PATIENCE_S)
    region = _core.Region(max(case.size_bytes, 1))
    target = world.gather(region.id)[_DESTINATION]
    job = PutJob(world, fabric, region, target, np.zeros(case.size_bytes, np.uint8))
    if world.rank == _DESTINATION:
        fabric.offer(_SOURCE, region)
        fabric.send(_SOURCE, _SAID)
    else:
        job.next("message")  # comes after the offer
    return job


def values(size_bytes: int, number: int) -> np.ndarray:
    """Of a round: no byte is what it was a round ago."""
    return ((np.arange(size_bytes) * 7 + number * 31) % 251).astype(np.uint8)


def _fill(job: PutJob, number: int) -> None:
    job.number = number
    job.source[:] = values(len(job.source), number)
    if job.world.rank == _DESTINATION:
        np.asarray(job.region)[:] = 255  # a value that no byte has


def _run(job: PutJob) -> Callable[[], Any] | None:
    if job.world.rank == _SOURCE:
        if job.fabric.put(job.peer, [(job.target, 0, job.source)], _SAID):
            job.next("done")
        job.next("message")
    else:
        job.next("message")
        job.fabric.send(job.peer, _SAID)
    return None


def count_missing(job: PutJob, _: Any) -> int:
    """Bytes of rank 1 that are not those of rank 0."""
    if job.world.rank == _SOURCE:
        return 0
    found = np.asarray(job.region)[: len(job.source)]
    return int(np.count_nonzero(found != values(len(job.source), job.number)))


def _volume(job: PutJob) -> Volume:
    received = len(job.source) if job.world.rank == _DESTINATION else 0
    return Volume(len(job.source), len(job.source), 1.0, received)


BENCH = Bench(
    name="put",
    flags=INDEX["put"].flags,
    ranks=move.two_ranks,
    cases=_cases,
    setup=_setup,
    fill=_fill,
    run=_run,
    count_wrong=count_missing,
    volume=_volume,
    halves=(False,),
)
