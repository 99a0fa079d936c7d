"""job: what `hybridengine reshard` asks for, and what each of its ranks does.

The command line imports this to start the ranks; torch is imported in the ranks only.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridengine.comm import Communicator
from hybridengine.launch import tell
from hybridengine.layouts.planning import bind_both
from hybridengine.models.models import resolve
from hybridengine.resharding.report import Report


@dataclass(frozen=True)
class ReshardJob:
    """The arguments, the same for every rank. `model` is one with weights."""

    model: str
    src: str
    dst: str
    dtype: str | None
    bucket_bytes: int
    verify: bool


@dataclass(frozen=True)
class RankOutcome:
    """`mismatched_elements` is None where nothing was compared."""

    report: Report
    mismatched_elements: int | None


def run_job(comm: Communicator, job: ReshardJob) -> RankOutcome:
    """Collective. Tells the launcher (phase, bytes done since) on the way; phases are `load`,
    `move` and `compare`."""
    from hybridengine.models.shards import count_mismatched, load_shards
    from hybridengine.resharding.resharder import Resharder

    model = resolve(job.model)
    checkpoint = model.open()
    assert checkpoint is not None  # see `model`
    src, dst = bind_both(model.spec, job.src, job.dst, job.dtype)
    shards = None
    if comm.rank in src.ranks:
        shards = load_shards(checkpoint, src, comm.rank, lambda size: tell(("load", size)))
    tell(("move", 0))
    resharder = Resharder(shards, src, dst, comm=comm, bucket_bytes=job.bucket_bytes)
    result = resharder.run()
    assert resharder.report is not None
    mismatched = None
    if job.verify:
        mismatched = count_mismatched(
            checkpoint, dst, comm.rank, result, lambda size: tell(("compare", size))
        )
    return RankOutcome(resharder.report, mismatched)
