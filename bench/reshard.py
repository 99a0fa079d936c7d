"""A model's weights from one layout to another: `--model`, `--src`, `--dst`. One row.

The model needs only shapes: a preset or a config.json is enough.
"""

from __future__ import annotations

from functools import cache

from hybridengine._bench import move
from hybridengine._bench.flags import DTYPES, Options
from hybridengine._bench.index import INDEX
from hybridengine._bench.record import Bench, Case
from hybridengine._bench.torch_rivals import RESHARD_RIVALS
from hybridengine._bench.world import World
from hybridengine._core import UsageError
from hybridengine.layouts.layout import Layout
from hybridengine.layouts.planning import bind_both
from hybridengine.models.models import resolve

# The engine moves any bits, but models are floating.
_FLOATING = ("half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2")


def _ranks(options: Options) -> int:
    """All ranks that either side names; also refuses types and layouts that do not fit."""
    if len(options.dtypes) > 1:
        raise UsageError("-d all: a reshard is of one type. Name one.")
    if options.dtypes and options.dtypes[0] not in (DTYPES[name] for name in _FLOATING):
        raise UsageError(f"a model is not of {options.dtypes[0]}. Use {', '.join(_FLOATING)}.")
    src, dst = _layouts(options)
    return max(*src.ranks, *dst.ranks) + 1


def _cases(options: Options) -> list[Case]:
    _, dst = _layouts(options)
    largest = max(dst.num_bytes(rank) for rank in dst.ranks)
    return [Case(largest, dst.spec.tensors[0][2])]


@cache
def _layouts(options: Options) -> tuple[Layout, Layout]:
    assert options.model is not None and options.src is not None and options.dst is not None
    spec = resolve(options.model).spec
    if options.dtypes:
        spec = spec.with_dtype(options.dtypes[0])
    return bind_both(spec, options.src, options.dst)


def _setup(world: World, options: Options, case: Case, in_place: bool) -> move.MoveJob:
    return move.MoveJob(world, options, *_layouts(options), in_place)


BENCH = Bench(
    name="reshard",
    flags=INDEX["reshard"].flags,
    ranks=_ranks,
    cases=_cases,
    setup=_setup,
    fill=move.fill,
    run=move.run,
    count_wrong=move.count_wrong,
    volume=move.volume,
    rivals=RESHARD_RIVALS,
)
