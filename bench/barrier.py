"""A barrier of all ranks. One row; `taskset -c 0` before the command puts all ranks on one core.

It is right where no rank leaves before the last has come: ranks of one host share a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

import hybridengine
from hybridengine._bench import collective
from hybridengine._bench.flags import Options
from hybridengine._bench.index import INDEX
from hybridengine._bench.record import Bench, Case, Volume
from hybridengine._bench.world import World

_LATER_SECONDS = 0.002  # each rank comes so much after the one before


@dataclass
class BarrierJob:
    world: World


def _cases(options: Options) -> list[Case]:
    return [Case(0, "uint8")]


def _setup(world: World, options: Options, case: Case, in_place: bool) -> BarrierJob:
    return BarrierJob(world)


def _fill(job: BarrierJob, number: int) -> None:
    """There are no data."""


def _run(job: BarrierJob) -> Callable[[], Any]:
    """Returns itself, to be run again by whoever checks it."""

    def once() -> None:
        hybridengine.barrier(job.world.comm)

    once()
    return once


def gloo_barrier(world: World, job: BarrierJob) -> Callable[[], Any]:
    group = world.gloo_group(list(range(world.size)))

    def once() -> None:
        dist.barrier(group=group)

    def run() -> Callable[[], Any]:
        once()
        return once

    return run


def count_early(job: BarrierJob, once: Callable[[], Any]) -> int:
    """1 where this rank left before the last had come."""
    time.sleep(_LATER_SECONDS * job.world.rank)
    came = time.perf_counter_ns()
    once()
    left = time.perf_counter_ns()
    return int(left < max(job.world.gather(came)))


def _volume(job: BarrierJob) -> Volume:
    return Volume(0, 0, 1.0, 0)


BENCH = Bench(
    name="barrier",
    flags=INDEX["barrier"].flags,
    ranks=collective.num_ranks,
    cases=_cases,
    setup=_setup,
    fill=_fill,
    run=_run,
    count_wrong=count_early,
    volume=_volume,
    rivals={"gloo_barrier": gloo_barrier},
    halves=(False,),
    repeats_short=True,
)
