"""Every rank gets the arrays of all ranks, one after the other. A row per size.

In-place, as nccl-tests means it, the input is the rank's own share of its output.
"""

from __future__ import annotations

import torch

import hybridengine
from hybridengine._bench import collective
from hybridengine._bench.collective import CollectiveJob
from hybridengine._bench.flags import Options
from hybridengine._bench.gloo_collectives import gloo_all_gather
from hybridengine._bench.index import INDEX
from hybridengine._bench.pattern import Pattern, as_bits, poison
from hybridengine._bench.record import Bench, Case, Volume
from hybridengine._bench.world import World


def _cases(options: Options) -> list[Case]:
    return [
        Case(size, dtype) for dtype in options.dtypes or ("float32",) for size in options.sizes()
    ]


def _setup(world: World, options: Options, case: Case, in_place: bool) -> CollectiveJob:
    counts, starts = collective.shares(collective.whole_elems(case) // world.size, options)
    outputs = collective.zeros([count * world.size for count in counts], case.dtype)
    if in_place:
        inputs = [tensor.chunk(world.size)[world.rank] for tensor in outputs]
    else:
        inputs = collective.zeros(counts, case.dtype)
    return CollectiveJob(world, options, case, in_place, inputs, outputs, starts)


def _fill(job: CollectiveJob, number: int) -> None:
    job.data = Pattern(number)
    for output in job.outputs:
        poison(output)
    for tensor, start in zip(job.inputs, job.starts, strict=True):
        as_bits(tensor).copy_(_values(job, job.world.rank, start, tensor))


def _values(job: CollectiveJob, rank: int, start: int, like: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor of `rank`."""
    bits: torch.Tensor = job.data.values(f"rank {rank}", start, like.numel(), as_bits(like).dtype)
    return bits


def _run(job: CollectiveJob) -> None:
    hybridengine.all_gather(
        job.outputs, job.inputs, comm=job.world.comm, bucket_bytes=job.bucket_bytes
    )


def _count_wrong(job: CollectiveJob, results: None) -> int:
    wrong = 0
    for output, start in zip(job.outputs, job.starts, strict=True):
        for rank, part in enumerate(output.chunk(job.world.size)):
            wrong += int((as_bits(part) != _values(job, rank, start, part)).sum())
    return wrong


def _volume(job: CollectiveJob) -> Volume:
    count = sum(tensor.numel() for tensor in job.inputs)
    return collective.volume(job, count * job.world.size, count, passes=1)


BENCH = Bench(
    name="all_gather",
    flags=INDEX["all_gather"].flags,
    ranks=collective.num_ranks,
    cases=_cases,
    setup=_setup,
    fill=_fill,
    run=_run,
    count_wrong=_count_wrong,
    volume=_volume,
    rivals={"gloo_all_gather": gloo_all_gather},
    repeats_short=True,
)
