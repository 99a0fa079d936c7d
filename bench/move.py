"""Moving tensors from one layout to another: the job of `reshard` and of `send_recv`.

Out-of-place, every run makes its results in fresh memory (out=None). In-place, every run writes
into the same destination tensors (out=), of torch's memory or of ours.
"""

from __future__ import annotations

from typing import Any

import torch

import hybridengine
from hybridengine._bench.flags import Options
from hybridengine._bench.pattern import Pattern, allocate, poison
from hybridengine._bench.record import Volume
from hybridengine._bench.world import World
from hybridengine.layouts.layout import Layout
from hybridengine.resharding.resharder import Resharder


def two_ranks(options: Options) -> int:
    """The source and the destination. Throws UsageError on a sweep that makes no sense, before
    ranks start."""
    options.sizes()
    return 2


class MoveJob:
    """One rank's tensors of both sides, and a Resharder over them. Making one is collective."""

    def __init__(
        self, world: World, options: Options, src: Layout, dst: Layout, in_place: bool
    ) -> None:
        self.rank, self.src, self.dst = world.rank, src, dst
        self.in_place, self.options = in_place, options
        self.sources = allocate(src, self.rank, zeroed=True)
        self.out = _destination(options.out, dst, self.rank) if in_place else None
        self.resharder = Resharder(
            self.sources if self.rank in src.ranks else None,
            src,
            dst,
            comm=world.comm,
            out=self.out,
            bucket_bytes=options.bucket_bytes,
        )
        self.pattern = Pattern(0)

    def results(self) -> dict[str, Any]:
        """Destination tensors as a rival takes them: out, or fresh ones."""
        return allocate(self.dst, self.rank, zeroed=True) if self.out is None else self.out


def fill(job: MoveJob, number: int) -> None:
    job.pattern = Pattern(number)
    job.pattern.fill(job.src, job.rank, job.sources)
    for tensor in (job.out or {}).values():
        poison(tensor)


def run(job: MoveJob) -> dict[str, Any]:
    return job.resharder.run()


def count_wrong(job: MoveJob, results: dict[str, Any]) -> int:
    return job.pattern.count_wrong(job.dst, job.rank, results, poisoned=job.in_place)


def volume(job: MoveJob) -> Volume:
    """Size: the largest destination shard. Bus bytes: the most that one rank receives of it."""
    rows = job.resharder.plan.certificate.ranks
    received = {row["rank"]: row["received_bytes"] for row in rows}
    bound = sum(row["bound_bytes"] for row in rows)
    size = max(job.dst.num_bytes(rank) for rank in job.dst.ranks)
    most, total = max(received.values(), default=0), sum(received.values())
    ratio = 1.0 if total == bound else total / bound if bound else float("inf")
    return Volume(
        size_bytes=size,
        count=size // itemsize(job.dst),
        bus_factor=most / size if size else 0.0,
        received_bytes=received.get(job.rank, 0),
        facts={
            "src": job.src.text,
            "dst": job.dst.text,
            "moved_bytes": total,
            "received_over_bound": ratio,
            "buckets": job.resharder.schedule.num_buckets,
            "bucket_bytes": job.options.bucket_bytes,
            "out": job.options.out,
            "model": job.options.model,
            "num_tensors": len(job.src.spec.tensors),
        },
    )


def itemsize(layout: Layout) -> int:
    """Bytes of an element of the first tensor, which gives the row its type."""
    size: int = getattr(torch, layout.spec.tensors[0][2]).itemsize
    return size


def _destination(kind: str, layout: Layout, rank: int) -> dict[str, Any]:
    if kind == "torch":
        return allocate(layout, rank, zeroed=True)
    return hybridengine.empty(layout, rank)
