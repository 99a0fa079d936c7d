"""Bytes from rank 0 to rank 1, as one tensor or as `--tensors` of them. A row per size."""

from __future__ import annotations

import math

import torch

from hybridengine import _core
from hybridengine._bench import move
from hybridengine._bench.flags import Options
from hybridengine._bench.index import INDEX
from hybridengine._bench.record import Bench, Case
from hybridengine._bench.torch_rivals import SEND_RECV_RIVALS
from hybridengine._bench.world import World
from hybridengine.layouts.layout import Layout
from hybridengine.layouts.spec import Spec


def _cases(options: Options) -> list[Case]:
    return [
        Case(size, dtype) for dtype in options.dtypes or ("float32",) for size in options.sizes()
    ]


def _setup(world: World, options: Options, case: Case, in_place: bool) -> move.MoveJob:
    elems = case.size_bytes // getattr(torch, case.dtype).itemsize
    share, more = divmod(elems, options.tensors)
    rows = [(f"tensor.{i}", (share + (i < more),), case.dtype) for i in range(options.tensors)]
    spec = Spec.from_tensors(rows)
    return move.MoveJob(world, options, on_rank(spec, 0), on_rank(spec, 1), in_place)


def on_rank(spec: Spec, rank: int) -> Layout:
    """Everything whole on one rank."""
    locals_ = [(rank, name, shape, dtype) for name, shape, dtype in spec.tensors]
    pieces = [
        (name, rank, name, (0,) * len(shape), shape, 0, _strides(shape))
        for name, shape, _ in spec.tensors
        if 0 not in shape
    ]
    return Layout(_core.Layout(f"rank {rank}", spec.core, [rank], locals_, pieces), spec)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


BENCH = Bench(
    name="send_recv",
    flags=INDEX["send_recv"].flags,
    ranks=move.two_ranks,
    cases=_cases,
    setup=_setup,
    fill=move.fill,
    run=move.run,
    count_wrong=move.count_wrong,
    volume=move.volume,
    rivals=SEND_RECV_RIVALS,
)
