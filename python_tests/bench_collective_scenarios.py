"""Benchmarks of collectives that go wrong on purpose. They must be importable by the ranks."""

from dataclasses import replace

from hybridengine._bench import (
    all_gather,
    all_reduce,
    barrier,
    masked_all_reduce,
    put,
    reduce_scatter,
    two_step,
)
from hybridengine._bench.pattern import as_bits

BENCHES = {
    bench.name: bench for bench in (all_reduce.BENCH, reduce_scatter.BENCH, all_gather.BENCH)
}


def run_and_spoil(job):
    """One element of the last tensor of one rank gets another bit, in place."""
    BENCHES[job.spoiled].run(job)
    if job.in_place and job.world.rank == job.world.size - 1:
        as_bits(job.outputs[-1])[-1] ^= 4


def _spoiled_setup(name, *args):
    job = BENCHES[name].setup(*args)
    job.spoiled = name
    return job


def setup_all_reduce(*args):
    return _spoiled_setup("all_reduce", *args)


def setup_reduce_scatter(*args):
    return _spoiled_setup("reduce_scatter", *args)


def setup_all_gather(*args):
    return _spoiled_setup("all_gather", *args)


SPOILED = {
    name: replace(BENCHES[name], setup=setup, run=run_and_spoil)
    for name, setup in (
        ("all_reduce", setup_all_reduce),
        ("reduce_scatter", setup_reduce_scatter),
        ("all_gather", setup_all_gather),
    )
}


def do_nothing(job):
    """Outputs stay poison, or what the inputs are in place."""


IDLE = {name: replace(bench, run=do_nothing) for name, bench in BENCHES.items()}


def mask_and_spoil(job):
    results = masked_all_reduce.BENCH.run(job)
    if not job.in_place and job.world.rank == 0:
        as_bits(results.values[0])[3] ^= 1
    return results


SPOILED_MASK = replace(masked_all_reduce.BENCH, run=mask_and_spoil)


def update_and_spoil(job):
    """After the step, one weight of generation's on one rank."""
    two_step.BENCH.run(job)
    if job.round > 0 and job.world.rank == 1:
        as_bits(job.results["model.norm.weight"])[5] ^= 1


SPOILED_UPDATE = replace(two_step.BENCH, run=update_and_spoil)


def wait_for_nobody(job):
    return lambda: None


NO_BARRIER = replace(barrier.BENCH, run=wait_for_nobody)


def put_and_spoil(job):
    put.BENCH.run(job)
    if job.world.rank == 1:
        memoryview(job.region)[99] ^= 1


SPOILED_PUT = replace(put.BENCH, run=put_and_spoil)
