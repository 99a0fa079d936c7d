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
from hybridengine._bench.record import Bench, Case, Volume
from hybridengine._bench.world import World
from hybridengine._core import UsageError
from hybridengine.layout import Layout, LayoutRule
from hybridengine.models import resolve

_MODEL = "smollm2-135m"
_DEFAULT_RANKS = 4
_DTYPE = "bfloat16"
_SCALE = 1 / 256  # of the whole numbers of Exact
_GLOO_BUCKET_ELEMS = (25 << 20) // 2  # the bucket size of DistributedDataParallel


@dataclass
class UpdateJob:
    """`starts` say where in the flattened model a tensor begins."""

    world: World
    options: Options
    layout: Layout
    module: torch.nn.Module
    starts: dict[str, int]
    round: int = -1
    two_step: Any = None
    weights: Any = field(default=None)  # Exact, of this round
    gradients: Any = field(default=None)


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
    starts, module, total = {}, torch.nn.Module(), 0
    for name, shape, _ in layout.spec.tensors:
        starts[name] = total
        parameter = torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16))
        _register(module, name, parameter)
        total += parameter.numel()
    return UpdateJob(world, options, layout, module, starts)


def _register(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
    *path, last = name.split(".")
    for part in path:
        if part not in dict(module.named_children()):
            module.add_module(part, torch.nn.Module())
        module = module.get_submodule(part)
    module.register_parameter(last, parameter)


def _fill(job: UpdateJob, number: int) -> None:
    """Weights, this rank's gradients, and an update that has done no step yet."""
    job.round = number
    job.weights = Exact(_DTYPE, 1, number)
    job.gradients = Exact(_DTYPE, job.world.size, number)
    weights, mine = job.weights.source(0), job.gradients.source(job.world.rank)
    for name, parameter in job.module.named_parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        for tensor, table in ((parameter.detach(), weights), (parameter.grad, mine)):
            write(tensor, table, job.starts[name])
            tensor.mul_(_SCALE)
    job.two_step = hybridengine.TwoStep(job.module, optimizer, job.layout, comm=job.world.comm)


def _run(job: UpdateJob) -> dict[str, torch.Tensor]:
    job.two_step.step()
    results: dict[str, torch.Tensor] = job.two_step.generation
    return results


def _count_wrong(job: UpdateJob, results: dict[str, torch.Tensor]) -> int:
    """Tensor by tensor: one step of the optimizer on the whole tensor in fp32."""
    weights, total = job.weights.source(0), job.gradients.result("sum")
    pieces: dict[str, list[Any]] = {}
    for name, *place in job.layout.pieces(job.world.rank):
        pieces.setdefault(name, []).append(place)
    wrong = 0
    for name, shape, _ in job.layout.spec.tensors:
        whole = _updated(shape, weights, total, job.starts[name])
        for local, start, size, offset, strides in pieces.get(name, []):
            box = whole[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]
            found = memory.view(results[local], size, strides, offset)
            wrong += int((found != box).sum())
    return wrong


def _updated(
    shape: tuple[int, ...], weights: torch.Tensor, gradient: torch.Tensor, start: int
) -> torch.Tensor:
    """A tensor after the first step."""
    parts = []
    for table in (weights, gradient):
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
    """The rival's state: one flat model, of which this rank updates a part."""

    def __init__(self, job: UpdateJob, group: Any) -> None:
        self._job, self._group, world = job, group, job.world
        named = dict(job.module.named_parameters())
        elems = sum(parameter.numel() for parameter in named.values())
        part = -(-elems // world.size)
        self._weights = torch.zeros(part * world.size, dtype=torch.bfloat16)
        self._gradients = torch.zeros_like(self._weights)
        for name, parameter in named.items():
            begin = job.starts[name]
            end = begin + parameter.numel()
            self._weights[begin:end] = parameter.detach().view(-1)
            self._gradients[begin:end] = parameter.grad.view(-1)  # type: ignore[union-attr]
        self._mine = slice(world.rank * part, (world.rank + 1) * part)
        self._master = torch.nn.Parameter(self._weights[self._mine].float())
        self._optimizer = optimizer([self._master])
        self._results = {
            name: memory.allocate(shape, dtype, zeroed=True)
            for name, shape, dtype in job.layout.locals(world.rank)
        }
        self._shapes = {name: shape for name, shape, _ in job.layout.spec.tensors}

    def step(self) -> dict[str, torch.Tensor]:
        for bucket in torch.split(self._gradients, _GLOO_BUCKET_ELEMS):
            dist.all_reduce(bucket, group=self._group)
        self._master.grad = self._gradients[self._mine].float()
        self._optimizer.step()
        mine = self._master.detach().to(torch.bfloat16)
        all_gather_single(
            self._weights.view(torch.uint8), mine.view(torch.uint8), group=self._group
        )
        job = self._job
        for name, local, start, size, offset, strides in job.layout.pieces(job.world.rank):
            shape, begin = self._shapes[name], job.starts[name]
            whole = self._weights[begin : begin + math.prod(shape)].view(shape)
            box = whole[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]
            memory.view(self._results[local], size, strides, offset).copy_(box)
        return self._results


def gloo_update(world: World, job: UpdateJob) -> Callable[[], Any]:
    """Begins anew where the job's round has changed."""
    group = world.gloo_group(list(range(world.size)))
    state: dict[int, _FlatUpdate] = {}

    def run() -> dict[str, torch.Tensor]:
        if job.round not in state:
            state.clear()
            state[job.round] = _FlatUpdate(job, group)
        return state[job.round].step()

    return run


BENCH = Bench(
    name="two_step",
    summary="gradients to updated weights in the layout for generation",
    flags=("ranks", "update", "rivals"),
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
