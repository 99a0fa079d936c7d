"""What the benchmarks of collectives share: a job, its sizes, and how a row is counted.

nccl-tests' meaning: `size` is the whole array, that which every rank has before a reduction or
after a gather; `count` is the argument of the call, a rank's share of it for reduce_scatter and
all_gather. `--tensors` splits the array into a list for one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hybridengine._bench.exact import TYPES, Exact, write
from hybridengine._bench.flags import REDOPS, Options
from hybridengine._bench.pattern import poison
from hybridengine._bench.record import Case, Volume
from hybridengine._bench.world import World
from hybridengine._core import UsageError
from hybridengine.collective.collectives import BucketBytes, Op

_DEFAULT_RANKS = 2
_OPS = ("sum",)


@dataclass
class CollectiveJob:
    """`inputs` are what the call reads and `outputs` what it writes: views of each other in place.
    `starts` say where in the whole array the tensors of a rank's share begin."""

    world: World
    options: Options
    case: Case
    in_place: bool
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    starts: list[int]
    data: Any = None

    @property
    def op(self) -> Op:
        return REDOPS[self.case.op]

    @property
    def bucket_bytes(self) -> BucketBytes:
        setting: BucketBytes | None = self.case.setting
        return self.options.fusion_bytes if setting is None else setting

    def copy_inputs(self) -> None:
        """Into the outputs, where a call works in place but the row does not."""
        if not self.in_place:
            for output, given in zip(self.outputs, self.inputs, strict=True):
                output.copy_(given)


def num_ranks(options: Options) -> int:
    """As many as -g says, else two. Throws UsageError on a sweep of sizes that makes no sense."""
    if options.sweep is None:
        options.sizes()
    return _DEFAULT_RANKS if options.ranks is None else options.ranks


def reducing_ranks(options: Options) -> int:
    """num_ranks(); also refuses what cannot be reduced."""
    if not reducing_rows(options):
        raise UsageError(
            f"{', '.join(options.redops or _OPS)} of {', '.join(options.dtypes)} is not reduced. "
            f"Use {', '.join(TYPES)} (torch's names), and avg for floating ones."
        )
    return num_ranks(options)


def reducing_rows(options: Options) -> list[tuple[str, str]]:
    """Those of the types and ops that there are: 8 bits are no reduced floats, and an avg of
    integers would depend on how it is rounded."""
    return [
        (dtype, op)
        for dtype in options.dtypes or ("float32",)
        if dtype in TYPES
        for op in options.redops or _OPS
        if op != "avg" or getattr(torch, dtype).is_floating_point
    ]


def reducing_cases(options: Options) -> list[Case]:
    """A row per type, op and size."""
    rows = reducing_rows(options)
    return [Case(size, dtype, op) for dtype, op in rows for size in options.sizes()]


def shares(elems: int, options: Options) -> tuple[list[int], list[int]]:
    """So many elements as `--tensors` tensors: their counts, and where each begins."""
    each, more = divmod(elems, options.tensors)
    counts = [each + (i < more) for i in range(options.tensors)]
    return counts, [sum(counts[:i]) for i in range(len(counts))]


def whole_elems(case: Case) -> int:
    return case.size_bytes // int(getattr(torch, case.dtype).itemsize)


def zeros(counts: list[int], dtype: str) -> list[torch.Tensor]:
    return [torch.zeros(count, dtype=getattr(torch, dtype)) for count in counts]


def fill_exact(job: CollectiveJob, number: int, scale: int = 1) -> None:
    """Poison in the outputs and this rank's summands in the inputs, whose tensors are `scale` times
    as long as the shares that they begin with."""
    job.data = Exact(job.case.dtype, job.world.size, number)
    for output in job.outputs:
        poison(output)
    mine = job.data.source(job.world.rank)
    for tensor, start in zip(job.inputs, job.starts, strict=True):
        write(tensor, mine, scale * start)


def volume(job: CollectiveJob, elems: int, count: int, passes: int) -> Volume:
    """`passes` times the array travels but for a rank's own share: twice in an all_reduce."""
    size = elems * job.inputs[0].element_size()
    factor = passes * (job.world.size - 1) / job.world.size
    facts = {
        "num_tensors": len(job.inputs),
        "bucket_bytes": job.bucket_bytes,
        "setting": job.case.setting,
    }
    return Volume(size, count, factor, int(size * factor), facts)
