"""Resharding again and again (B37): nothing is left behind, and a call that is repeated makes
nothing for each tensor."""

import gc
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks, run_ranks

import hybridengine
from hybridengine import Layout, Resharder, Spec, _core, reshard

pytestmark = pytest.mark.python

CALLS, FIRST_LOOK = 200, 40
# A lost shard a call would be ten times as much. A sanitizer keeps what is freed for a while, to
# catch later use: up to 256 MiB.
GROWTH_BYTES = 320 << 20 if _core.build_facts()["sanitize"] else 4 << 20


def held_now(comm: Any) -> dict[str, int]:
    """What this process has while no rank is in a call."""
    gc.collect()
    time.sleep(
        1
    )  # memory of results that were dropped is back within a second, and no thread waits
    for _ in range(2):  # the second begins when every rank has let go of its results
        with comm.call():
            comm.all_gather(b"")
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "segments": Path("/proc/self/maps").read_text().count("/memfd:"),
        "threads": len(os.listdir("/proc/self/task")),
    }


def reshard_often(comm: Any, way: str) -> list[dict[str, int]]:
    """What is held after some calls, and after all of them."""
    full = {f"w.{i}": torch.full((256, 256), float(i)) for i in range(4)}
    spec = Spec.from_tensors([(name, tuple(t.shape), "float32") for name, t in full.items()])
    src, dst = Layout.fsdp2(2).bind(spec), Layout.fsdp2(1, ranks=[1]).bind(spec)
    mine = {name: tensor.chunk(2)[comm.rank].clone() for name, tensor in full.items()}
    out = None
    if way == "ours" and comm.rank == 1:
        out = hybridengine.empty(dst, 1)
    elif way == "torch" and comm.rank == 1:
        out = {name: torch.zeros(256, 256) for name in full}
    kept = None if way == "anew" else Resharder(mine, src, dst, comm=comm, out=out)

    def call() -> dict[str, Any]:
        if kept is None:
            return reshard(mine, src, dst, comm=comm)
        if way != "stream":
            return kept.run()
        seen: dict[str, Any] = {}
        kept.stream(seen.__setitem__)
        return seen

    looks = []
    for number in range(1, CALLS + 1):
        got = call()
        assert comm.rank == 0 or all(got[name].equal(full[name]) for name in full)
        del got
        if number in (FIRST_LOOK, CALLS):
            looks.append(held_now(comm))
    with comm.call():
        comm.all_gather(b"")  # a peer that has left takes descriptors with it
    return looks


@pytest.mark.parametrize("transport", ["shm", "cma"])
def test_200_reshards_leave_nothing_behind(transport):
    """All ways at once, each on two ranks of its own: mostly they wait for what is given back."""
    ways = ("anew", "fresh", "ours", "torch", "stream")
    worlds = [Ranks(2, reshard_often, way, transport=transport, timeout=60) for way in ways]
    for way, ranks in zip(ways, worlds, strict=True):
        for outcome in ranks.results(120):
            assert outcome[0] == "ok", (way, outcome)
            early, late = outcome[1]
            assert late["resident"] - early["resident"] < GROWTH_BYTES, way
            for name in ("descriptors", "segments", "threads"):
                # Fewer is right: what is idle may be given back in between.
                assert late[name] <= early[name], (way, name)


def run_cached(comm: Any, count: int) -> dict[str, Any]:
    """Many small tensors into out=: what 50 runs leave in Python, and the most that one takes."""
    spec = Spec.from_tensors([(f"w.{i}", (16,), "float32") for i in range(count)])
    src, dst = Layout.fsdp2(1, ranks=[0]).bind(spec), Layout.fsdp2(1, ranks=[1]).bind(spec)
    model = {name: torch.ones(shape) for name, shape, _ in src.locals(comm.rank)}
    out = {name: torch.zeros(shape) for name, shape, _ in dst.locals(comm.rank)}
    resharder = Resharder(model or None, src, dst, comm=comm, out=out or None)
    first = resharder.run()
    resharder.run()
    tracemalloc.start()
    left = []
    for _ in range(2):  # what the interpreter keeps for reuse is there after the first 50 runs
        for _ in range(50):
            last = resharder.run()
            assert all(last[name] is first[name] is tensor for name, tensor in out.items())
            del last
        left.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.reset_peak()
    resharder.run()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(tensor.eq(1).all() for tensor in out.values())
    return {"left_bytes": left[1] - left[0], "most_bytes": most - left[1]}


@pytest.mark.parametrize("transport", ["shm", "cma"])
def test_a_repeated_run_makes_nothing_for_each_tensor(transport):
    """A dict of 4096 names is all that it returns; 4096 tensors, or rows, would be far more."""
    for seen in run_ranks(2, run_cached, 4096, transport=transport):
        assert seen["left_bytes"] < 4096
        assert seen["most_bytes"] < 64 * 4096
