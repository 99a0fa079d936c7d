"""Every rank gets the sum (or max, min, mean) of all ranks' arrays. A row per size.

The call works in place. Out-of-place, as nccl-tests means it, keeps the input: there a copy into
the output comes first, within the time, for ours and for rivals alike.
"""

from __future__ import annotations

import hybridengine
from hybridengine._bench import collective
from hybridengine._bench.bucket_sweep import BUCKET_SWEEP
from hybridengine._bench.collective import CollectiveJob
from hybridengine._bench.exact import count_different
from hybridengine._bench.flags import Options
from hybridengine._bench.gloo_collectives import gloo_all_reduce
from hybridengine._bench.index import INDEX
from hybridengine._bench.record import Bench, Case, Volume
from hybridengine._bench.world import World


def _setup(world: World, options: Options, case: Case, in_place: bool) -> CollectiveJob:
    counts, starts = collective.shares(collective.whole_elems(case), options)
    outputs = collective.zeros(counts, case.dtype)
    inputs = outputs if in_place else collective.zeros(counts, case.dtype)
    return CollectiveJob(world, options, case, in_place, inputs, outputs, starts)


def _run(job: CollectiveJob) -> None:
    job.copy_inputs()
    hybridengine.all_reduce(job.outputs, job.op, comm=job.world.comm, bucket_bytes=job.bucket_bytes)


def _count_wrong(job: CollectiveJob, results: None) -> int:
    expected = job.data.result(job.case.op)
    ends = zip(job.outputs, job.starts, strict=True)
    return sum(count_different(tensor, expected, start) for tensor, start in ends)


def _volume(job: CollectiveJob) -> Volume:
    elems = collective.whole_elems(job.case)
    return collective.volume(job, elems, elems, passes=2)


BENCH = Bench(
    name="all_reduce",
    flags=INDEX["all_reduce"].flags,
    ranks=collective.reducing_ranks,
    cases=collective.reducing_cases,
    setup=_setup,
    fill=collective.fill_exact,
    run=_run,
    count_wrong=_count_wrong,
    volume=_volume,
    rivals={"gloo_all_reduce": gloo_all_reduce},
    sweeps={"bucket": BUCKET_SWEEP},
    repeats_short=True,
)
