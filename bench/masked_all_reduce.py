"""Every rank gets the mean (or sum) over the ranks whose score reaches the threshold. A row per
size, and beside it our all_reduce of the whole arrays: the row `dense`. `--rival
route_wire,route_dense` shows either route where ours takes the faster one.

Scores are spread evenly from 0 to 1 and independent on every rank: a threshold t keeps 1 - t of the
entries. Bandwidths are of the whole array, as if all of it had travelled. In-place writes into the
values (`out=`), out-of-place makes fresh results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

import hybridengine
from hybridengine._bench import collective
from hybridengine._bench.collective import CollectiveJob
from hybridengine._bench.density_sweep import COLUMNS, DENSITY_SWEEP
from hybridengine._bench.exact import count_different
from hybridengine._bench.flags import Options
from hybridengine._bench.gloo_collectives import gloo_all_reduce
from hybridengine._bench.index import INDEX
from hybridengine._bench.pattern import PERIOD, as_bits, mixed_numbers, periodic
from hybridengine._bench.record import Bench, Case, Volume
from hybridengine._bench.world import World
from hybridengine._core import UsageError
from hybridengine.collective.collectives import BucketBytes

_OPS = ("avg", "sum")
_TYPES = ("float32", "float64", "float16", "bfloat16")
_ROW_ELEMS = 1024
_NUM_TENSORS = 64
_SCORE_BITS = 24  # exact in float32
_CHUNK_ELEMS = 1 << 20


@dataclass
class MaskedJob(CollectiveJob):
    """Values are the `inputs`; `outputs` are for the dense rivals. `scores` are one tensor for each
    of the inputs, whose first score has the number in `score_starts`."""

    scores: list[torch.Tensor] = field(default_factory=list)
    score_starts: list[int] = field(default_factory=list)
    round: int = 0

    @property
    def threshold(self) -> float:
        density = self.case.setting
        return self.options.threshold if density is None else 1.0 - float(density)

    @property
    def bucket_bytes(self) -> BucketBytes:
        return self.options.fusion_bytes

    def score_table(self, rank: int) -> torch.Tensor:
        mixed = mixed_numbers((self.round + 1) * self.world.size + rank, PERIOD) >> 8
        return (mixed % (1 << _SCORE_BITS)).float() / (1 << _SCORE_BITS)


def _ranks(options: Options) -> int:
    if any(dtype not in _TYPES for dtype in options.dtypes):
        raise UsageError(f"values are floating: use -d with one of {', '.join(_TYPES)} (torch's).")
    if any(op not in _OPS for op in options.redops):
        raise UsageError(f"-o {' '.join(options.redops)} is not masked. Use {' or '.join(_OPS)}.")
    return collective.num_ranks(options)


def _cases(options: Options) -> list[Case]:
    return [
        Case(size, dtype, op)
        for dtype in options.dtypes or ("float32",)
        for op in options.redops or ("avg",)
        for size in options.sizes()
    ]


def _shapes(options: Options, elems: int) -> list[tuple[int, ...]]:
    """Of the values: rows of one tensor, a flat one, or several flat ones."""
    if options.granularity == "row":
        width = min(_ROW_ELEMS, max(elems, 1))
        return [(elems // width, width)]
    if options.granularity == "element":
        return [(elems,)]
    return [(elems // _NUM_TENSORS,)] * _NUM_TENSORS


def _setup(world: World, options: Options, case: Case, in_place: bool) -> MaskedJob:
    dtype = getattr(torch, case.dtype)
    shapes = _shapes(options, collective.whole_elems(case))
    inputs = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    outputs = inputs if in_place else [torch.zeros(shape, dtype=dtype) for shape in shapes]
    starts = [i * inputs[0].numel() for i in range(len(inputs))]
    by_tensor = options.granularity == "tensor"
    scores = [torch.zeros(() if by_tensor else shape[:1]) for shape in shapes]
    score_starts = list(range(len(scores)))
    return MaskedJob(
        world, options, case, in_place, inputs, outputs, starts, None, scores, score_starts
    )


def _fill(job: MaskedJob, number: int) -> None:
    collective.fill_exact(job, number)
    job.round = number
    mine = job.score_table(job.world.rank)
    for scores, start in zip(job.scores, job.score_starts, strict=True):
        scores.view(-1).copy_(periodic(mine, start, scores.numel()))


def _run(job: MaskedJob, route: str = "fast") -> Any:
    return hybridengine.masked_all_reduce(
        job.inputs,
        job.scores,
        job.threshold,
        op=job.op,
        granularity=job.options.granularity,
        out=job.inputs if job.in_place else None,
        comm=job.world.comm,
        bucket_bytes=job.bucket_bytes,
        route=route,
    )


def on_route(world: World, job: MaskedJob, route: str) -> Callable[[], Any]:
    """The same call on a route of the caller's."""
    return lambda: _run(job, route)


def dense(world: World, job: MaskedJob) -> Callable[[], Any]:
    """Our all_reduce of whole arrays, whatever the scores."""

    def run() -> None:
        job.copy_inputs()
        hybridengine.all_reduce(job.outputs, job.op, comm=world.comm, bucket_bytes=job.bucket_bytes)

    return run


def _count_wrong(job: MaskedJob, results: Any) -> int:
    """Of values and of counts, where there are any. `results` are None where a dense rival ran."""
    if results is None:
        whole = job.data.result(job.case.op)
        ends = zip(job.outputs, job.starts, strict=True)
        return sum(count_different(tensor, whole, start) for tensor, start in ends)
    sources = [job.data.source(rank) for rank in range(job.world.size)]
    tables = [job.score_table(rank) for rank in range(job.world.size)]
    wrong = 0
    for at, (tensor, scores) in enumerate(zip(results.values, job.scores, strict=True)):
        width = tensor.numel() // max(scores.numel(), 1)  # elements that share a score
        step = max(_CHUNK_ELEMS // max(width, 1), 1)
        for first in range(0, scores.numel(), step):
            count = min(step, scores.numel() - first)
            begin = job.score_starts[at] + first
            kept = [periodic(table, begin, count) >= job.threshold for table in tables]
            begin = job.starts[at] + first * width
            values = [periodic(each, begin, count * width).view(count, width) for each in sources]
            found = tensor.view(-1)[first * width : (first + count) * width]
            wrong += int((as_bits(found) != as_bits(masked(job.op, kept, values))).sum())
            if results.counts is not None:
                counted = results.counts[at].view(-1)[first : first + count]
                wrong += int((counted != torch.stack(kept).sum(dim=0)).sum())
    return wrong


def masked(op: str, kept: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
    """What comes of rows of `values` where `kept` says which of them take part."""
    wide = torch.promote_types(values[0].dtype, torch.float32)
    total = torch.zeros(values[0].shape, dtype=wide)
    for keep, each in zip(kept, values, strict=True):
        total += torch.where(keep[:, None], each.to(wide), 0.0)
    if op == "mean":
        total /= torch.stack(kept).sum(dim=0).clamp(min=1)[:, None].to(wide)
    return total.to(values[0].dtype)


def _volume(job: MaskedJob) -> Volume:
    """Runs once: what is kept and travels follows from the scores."""
    result = _run(job)
    elems = sum(tensor.numel() for tensor in job.inputs)
    plain = collective.volume(job, elems, elems, passes=2)
    num_scores = sum(scores.numel() for scores in job.scores)
    ranks = job.world.gather((result.kept, result.wire_bytes, result.dense_bytes))
    kept, wire, whole = zip(*ranks, strict=True)
    facts = {
        "threshold": job.threshold,
        "granularity": job.options.granularity,
        "kept_percent": 100.0 * sum(kept) / max(num_scores * job.world.size, 1),
        "wire_bytes": max(wire),
        "dense_bytes": max(whole),
    }
    return Volume(plain.size_bytes, elems, plain.bus_factor, result.wire_bytes, plain.facts | facts)


BENCH = Bench(
    name="masked_all_reduce",
    flags=INDEX["masked_all_reduce"].flags,
    ranks=_ranks,
    cases=_cases,
    setup=_setup,
    fill=_fill,
    run=_run,
    count_wrong=_count_wrong,
    volume=_volume,
    rivals={
        "dense": dense,
        "route_wire": partial(on_route, route="wire"),
        "route_dense": partial(on_route, route="dense"),
        "gloo_all_reduce": gloo_all_reduce,
    },
    always=("dense",),
    columns=COLUMNS,
    sweeps={"density": DENSITY_SWEEP},
    repeats_short=True,
)
