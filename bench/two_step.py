"""One update of a model that all ranks train together, to its weights in the layout for generation.

Every rank holds the whole model and gradients of its own. Ours is TwoStep.step(). The rival does
what trainers do with torch: all_reduce of the gradients in flat buckets, each rank's 1/n of the
optimizer step, all_gather of the new weights, and every tensor copied to its place for generation.
Both in bf16 with an fp32 master copy, AdamW, without clipping. Weights and gradients are made up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

import hybridengine
from hybridengine import tensors as memory
from hybridengine._bench.exact import Exact, write
from hybridengine._bench.flags import Options
from hybridengine._bench.gloo_collectives import all_gather_single
from hybridengine._bench.index import INDEX
from hybridengine._bench.record import Bench, Case, Volume
from hybridengine._bench.world import World
from hybridengine._core import UsageError
from hybridengine.layouts.layout import Layout, LayoutRule
from hybridengine.models.models import resolve

_MODEL = "smollm2-135m"
_DEFAULT_RANKS = 4
_DTYPE = "bfloat16"
_SCALE = 1 / 256  # of the whole numbers of Exact
_GLOO_BUCKET_ELEMS = (25 << 20) // 2  # the bucket size of DistributedDataParallel


@dataclass
class UpdateJob:
    """The model is one flat tensor, and so are its gradients; the module has views of them, and
    `starts` say where each begins. `results` are generation's tensors."""

    world: World
    options: Options
    layout: Layout
    module: torch.nn.Module
    starts: dict[str, int]
    weights: torch.Tensor
    gradients: torch.Tensor
    round: int = -1
    fills: int = 0
    before: Any = None  # Exact, of this round
    summands: Any = None
    two_step: Any = None
    results: dict[str, torch.Tensor] = field(default_factory=dict)


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def _ranks(options: Options) -> int:
    count = _DEFAULT_RANKS if options.ranks is None else options.ranks
    layout = _layout(options, count)
    if max(layout.ranks) >= count:
        raise UsageError(
            f"{layout.text} has ranks up to {max(layout.ranks)}, there are {count}. Raise -g."
        )
    return count


@cache
def _layout(options: Options, count: int) -> Layout:
    spec = resolve(_MODEL if options.model is None else options.model).spec.with_dtype(_DTYPE)
    text = f"vllm(tp=1,replicas={count})" if options.dst is None else options.dst
    return LayoutRule.parse(text).bind(spec)


def _cases(options: Options) -> list[Case]:
    return [Case(0, _DTYPE, "sum")]


def _setup(world: World, options: Options, case: Case, in_place: bool) -> UpdateJob:
    layout = _layout(options, world.size)
    tensors = layout.spec.tensors
    sizes = [math.prod(shape) for _, shape, _ in tensors]
    starts = {name: sum(sizes[:i]) for i, (name, _, _) in enumerate(tensors)}
    part = -(-sum(sizes) // world.size)  # of every rank, for the rival
    weights = torch.zeros(part * world.size, dtype=torch.bfloat16)
    gradients = torch.zeros_like(weights)
    module = torch.nn.Module()
    for (name, shape, _), size in zip(tensors, sizes, strict=True):
        place = slice(starts[name], starts[name] + size)
        parameter = torch.nn.Parameter(weights[place].view(shape))
        parameter.grad = gradients[place].view(shape)
        _register(module, name, parameter)
    return UpdateJob(world, options, layout, module, starts, weights, gradients)


def _register(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
    *path, last = name.split(".")
    for part in path:
        if part not in dict(module.named_children()):
            module.add_module(part, torch.nn.Module())
        module = module.get_submodule(part)
    module.register_parameter(last, parameter)


def _fill(job: UpdateJob, number: int) -> None:
    """Weights, this rank's gradients, and an update that has done no step yet."""
    job.round, job.fills, job.two_step = number, job.fills + 1, None
    job.before = Exact(_DTYPE, 1, number)
    job.summands = Exact(_DTYPE, job.world.size, number)
    tables = job.before.source(0), job.summands.source(job.world.rank)
    for tensor, table in zip((job.weights, job.gradients), tables, strict=True):
        write(tensor, table, 0)
        tensor.mul_(_SCALE)
    job.two_step = hybridengine.TwoStep(job.module, optimizer, job.layout, comm=job.world.comm)
    job.results = job.two_step.generation


def _run(job: UpdateJob) -> None:
    job.two_step.step()


def _count_wrong(job: UpdateJob, results: None) -> int:
    """Of generation's weights and of those in training, tensor by tensor."""
    before, total = job.before.source(0), job.summands.result("sum")
    pieces: dict[str, list[Any]] = {}
    for name, *place in job.layout.pieces(job.world.rank):
        pieces.setdefault(name, []).append(place)
    named = dict(job.module.named_parameters())
    wrong = 0
    for name, shape, _ in job.layout.spec.tensors:
        whole = _updated(shape, before, total, job.starts[name])
        wrong += int((named[name] != whole).sum())
        for local, start, size, offset, strides in pieces.get(name, []):
            box = whole[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]
            found = memory.view(job.results[local], size, strides, offset)
            wrong += int((found != box).sum())
    return wrong


def _updated(
    shape: tuple[int, ...], before: torch.Tensor, gradient: torch.Tensor, start: int
) -> torch.Tensor:
    """A tensor after one step of the optimizer on the whole of it, in float32."""
    parts = []
    for table in (before, gradient):
        part = torch.empty(shape, dtype=torch.bfloat16)
        write(part, table, start)
        parts.append(part.mul_(_SCALE).float())
    master = torch.nn.Parameter(parts[0])
    master.grad = parts[1]
    optimizer([master]).step()
    return master.detach().to(torch.bfloat16)


def _volume(job: UpdateJob) -> Volume:
    size = job.layout.spec.num_bytes
    factor = 2 * (job.world.size - 1) / job.world.size
    facts = {
        "model": _MODEL if job.options.model is None else job.options.model,
        "dst": job.layout.text,
        "num_tensors": len(job.starts),
    }
    return Volume(size, size // torch.bfloat16.itemsize, factor, int(size * factor), facts)


class _FlatUpdate:
    """The rival's state: this rank's part of the flat model, in float32."""

    def __init__(self, job: UpdateJob, group: Any) -> None:
        job.two_step = None  # frees its memory
        self._job, self._group = job, group
        part = job.weights.numel() // job.world.size
        self._mine = slice(job.world.rank * part, (job.world.rank + 1) * part)
        self._master = torch.nn.Parameter(job.weights[self._mine].float())
        self._optimizer = optimizer([self._master])
        shapes = {name: shape for name, shape, _ in job.layout.spec.tensors}
        self._copies = [
            (
                memory.view(job.results[local], size, strides, offset),
                _box(job, name, shapes[name], start, size),
            )
            for name, local, start, size, offset, strides in job.layout.pieces(job.world.rank)
        ]

    def step(self) -> None:
        job = self._job
        for bucket in torch.split(job.gradients, _GLOO_BUCKET_ELEMS):
            dist.all_reduce(bucket, group=self._group)
        self._master.grad = job.gradients[self._mine].float()
        self._optimizer.step()
        mine = self._master.detach().to(torch.bfloat16)
        all_gather_single(job.weights.view(torch.uint8), mine.view(torch.uint8), group=self._group)
        for place, box in self._copies:
            place.copy_(box)


def _box(job: UpdateJob, name: str, shape: tuple[int, ...], start: Any, size: Any) -> torch.Tensor:
    whole = job.weights[job.starts[name] :][: math.prod(shape)].view(shape)
    return whole[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]


def gloo_update(world: World, job: UpdateJob) -> Callable[[], Any]:
    """Begins anew where the job was filled since."""
    group = world.gloo_group(list(range(world.size)))
    state: dict[int, _FlatUpdate] = {}

    def run() -> None:
        if job.fills not in state:
            state.clear()
            state[job.fills] = _FlatUpdate(job, group)
        state[job.fills].step()

    return run


BENCH = Bench(
    name="two_step",
    flags=INDEX["two_step"].flags,
    ranks=_ranks,
    cases=_cases,
    setup=_setup,
    fill=_fill,
    run=_run,
    count_wrong=_count_wrong,
    volume=_volume,
    rivals={"gloo_update": gloo_update},
    always=("gloo_update",),
    halves=(True,),
)
