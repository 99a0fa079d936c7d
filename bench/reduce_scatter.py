"""Every rank gets its share of the sum (or max, min, mean) of all ranks' arrays. A row per size.

In-place, as nccl-tests means it, the output is the rank's own share of its input.
"""

from __future__ import annotations

import hybridengine
from hybridengine._bench import collective
from hybridengine._bench.collective import CollectiveJob
from hybridengine._bench.exact import count_different
from hybridengine._bench.flags import Options
from hybridengine._bench.gloo_collectives import gloo_reduce_scatter
from hybridengine._bench.index import INDEX
from hybridengine._bench.record import Bench, Case, Volume
from hybridengine._bench.world import World


def _setup(world: World, options: Options, case: Case, in_place: bool) -> CollectiveJob:
    counts, starts = collective.shares(collective.whole_elems(case) // world.size, options)
    inputs = collective.zeros([count * world.size for count in counts], case.dtype)
    if in_place:
        outputs = [tensor.chunk(world.size)[world.rank] for tensor in inputs]
    else:
        outputs = collective.zeros(counts, case.dtype)
    return CollectiveJob(world, options, case, in_place, inputs, outputs, starts)


def _fill(job: CollectiveJob, number: int) -> None:
    collective.fill_exact(job, number, scale=job.world.size)


def _run(job: CollectiveJob) -> None:
    hybridengine.reduce_scatter(
        job.outputs, job.inputs, job.op, comm=job.world.comm, bucket_bytes=job.bucket_bytes
    )


def _count_wrong(job: CollectiveJob, results: None) -> int:
    expected = job.data.result(job.case.op)
    return sum(
        count_different(tensor, expected, job.world.size * start + job.world.rank * tensor.numel())
        for tensor, start in zip(job.outputs, job.starts, strict=True)
    )


def _volume(job: CollectiveJob) -> Volume:
    count = sum(tensor.numel() for tensor in job.outputs)
    return collective.volume(job, count * job.world.size, count, passes=1)


BENCH = Bench(
    name="reduce_scatter",
    flags=INDEX["reduce_scatter"].flags,
    ranks=collective.reducing_ranks,
    cases=collective.reducing_cases,
    setup=_setup,
    fill=_fill,
    run=_run,
    count_wrong=_count_wrong,
    volume=_volume,
    rivals={"gloo_reduce_scatter": gloo_reduce_scatter},
    repeats_short=True,
)
