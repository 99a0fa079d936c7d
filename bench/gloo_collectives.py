"""Rivals by torch.distributed over gloo for collectives: the same call, one tensor after the
other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from hybridengine._bench.collective import CollectiveJob
from hybridengine._bench.world import World

# Their names from torch 2.13 on, and before.
_NAMES = {
    "reduce_scatter_single": "reduce_scatter_tensor",
    "all_gather_single": "all_gather_into_tensor",
}
reduce_scatter_single, all_gather_single = (
    getattr(dist, new if hasattr(dist, new) else old) for new, old in _NAMES.items()
)

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,  # gloo has no mean: a division follows
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


def gloo_all_reduce(world: World, job: CollectiveJob) -> Callable[[], Any]:
    group = world.gloo_group(list(range(world.size)))
    op = _OPS[job.case.op]

    def run() -> None:
        job.copy_inputs()
        for tensor in job.outputs:
            dist.all_reduce(tensor, op=op, group=group)
        _divide(job)

    return run


def gloo_reduce_scatter(world: World, job: CollectiveJob) -> Callable[[], Any]:
    group = world.gloo_group(list(range(world.size)))
    op = _OPS[job.case.op]

    def run() -> None:
        for output, given in zip(job.outputs, job.inputs, strict=True):
            reduce_scatter_single(output, given, op=op, group=group)
        _divide(job)

    return run


def gloo_all_gather(world: World, job: CollectiveJob) -> Callable[[], Any]:
    group = world.gloo_group(list(range(world.size)))
    pairs = [
        (output.view(torch.uint8), given.view(torch.uint8))
        for output, given in zip(job.outputs, job.inputs, strict=True)
    ]

    def run() -> None:
        for output, given in pairs:
            all_gather_single(output, given, group=group)

    return run


def _divide(job: CollectiveJob) -> None:
    if job.case.op == "avg":
        for tensor in job.outputs:
            tensor.div_(job.world.size)
