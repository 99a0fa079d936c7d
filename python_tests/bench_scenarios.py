"""What ranks do in the tests of benchmarks. They must be importable by the ranks."""

import os
import time
from dataclasses import replace

import torch

from hybridengine._bench import reshard, send_recv
from hybridengine._bench.pattern import as_bits
from hybridengine.resharding.resharder import Resharder


def run_and_spoil(job):
    """One element of one tensor on one rank gets another bit."""
    results = send_recv.BENCH.run(job)
    if job.in_place and job.rank == 1:
        as_bits(results["tensor.1"])[-1] ^= 4
    return results


def spoiling_rival(world, job):
    run = reshard.BENCH.rivals["gloo_all_gather"](world, job)

    def run_and_spoil():
        results = run()
        if not job.in_place and job.rank == 1:
            as_bits(next(iter(results.values())))[0] ^= 8
        return results

    return run_and_spoil


SPOILED = replace(send_recv.BENCH, run=run_and_spoil)
SPOILED_RIVAL = replace(reshard.BENCH, rivals={"spoiling": spoiling_rival})


def leave_out_a_write(job):
    """The destination keeps what it had: poison, or the values of the round before."""
    if job.pattern.number == 0:
        return send_recv.BENCH.run(job)
    return job.results()


IDLE = replace(send_recv.BENCH, run=leave_out_a_write)


def resources():
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "resident": resident,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "shared": sum("hybridengine" in name for name in os.listdir("/dev/shm")),
    }


def reshard_often(comm, calls, looks):
    """Resources of this rank after the calls in `looks`."""
    model = {f"w.{i}": torch.full((512, 1024), float(i)) for i in range(16)}
    resharder = Resharder(model, "fsdp2(2)", "replicated(2)", comm=comm)
    seen = []
    for call in range(1, calls + 1):
        results = resharder.run()
        if call in looks:
            assert all(bool((tensor == i).all()) for i, tensor in enumerate(results.values()))
            del results
            time.sleep(1)  # memory of results that were dropped is back within a second
            for _ in range(2):  # the second begins when every rank has let go of its results
                with comm.call():
                    comm.all_gather(b"")
            seen.append(resources())
    return seen
