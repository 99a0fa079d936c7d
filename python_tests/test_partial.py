"""Partial layouts: plans, schedules and runs that combine contributions, against plain numpy."""

import math
import random
from dataclasses import replace

import blobs
import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layouts import layouts, specs
from ranks import run_ranks, run_threads

from hybridengine import Layout, LayoutRule, Resharder, Spec, UsageError, _core

WORLD = 4
OPS = {"sum": np.add, "min": np.minimum, "max": np.maximum}
BUCKET_BYTES = [8, 40, 1000, 32 << 20]


@st.composite
def reductions(draw, dtypes=("float32", "bfloat16", "int32")):
    """A source whose pieces are contributions, and a destination."""
    spec = draw(specs(dtypes=list(dtypes)))
    src = draw(layouts(spec, WORLD))
    op = draw(st.sampled_from(["sum", "mean", "min", "max"]))
    if op == "mean" and any(dtype == "int32" for _, _, dtype in spec.tensors):
        op = "sum"
    return src.partial(op), draw(layouts(spec, WORLD))


def contributions(layout: blobs.Layout, seed: int) -> list[np.ndarray]:
    """Small whole numbers for every local tensor, flat: exact in any order and type."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 8, math.prod(each.shape)) for each in layout.locals]


def combined(layout: blobs.Layout, op: str, values: list[np.ndarray]) -> dict[str, np.ndarray]:
    """What comes out, by logical tensor: only from the pieces and what lies in them."""
    result = {}
    for index, (name, _, shape) in enumerate(layout.spec.tensors):
        total = np.zeros(shape)
        count = np.zeros(shape, dtype=int)
        for piece in layout.pieces:
            if piece.tensor != index:
                continue
            box = tuple(slice(a, a + n) for a, n in zip(piece.start, piece.size, strict=True))
            part = values[piece.local][oracle.places_of(piece, piece.start, piece.size)]
            first = count[box] == 0
            with_part = OPS["sum" if op == "mean" else op](total[box], part)
            total[box] = np.where(first, part, with_part)
            count[box] += 1
        result[name] = total / count if op == "mean" else total
    return result


def local_tensors(layout: blobs.Layout, values, rank: int) -> dict[str, torch.Tensor]:
    return {
        layout.names[local.name]: torch.from_numpy(flat.copy())
        .to(getattr(torch, local.dtype))
        .view(local.shape)
        for local, flat in zip(layout.locals, values, strict=True)
        if local.rank == rank
    }


def check_result(layout: blobs.Layout, expected: dict[str, np.ndarray], rank: int, result) -> None:
    for piece in layout.pieces:
        if piece.rank != rank:
            continue
        name, dtype, _ = layout.spec.tensors[piece.tensor]
        box = tuple(slice(a, a + n) for a, n in zip(piece.start, piece.size, strict=True))
        flat = result[layout.names[layout.locals[piece.local].name]].reshape(-1)
        found = flat[torch.from_numpy(oracle.places_of(piece, piece.start, piece.size))]
        wanted = torch.from_numpy(np.asarray(expected[name][box])).float()
        assert torch.equal(found, wanted.to(getattr(torch, dtype))), (name, piece)


def has_overlap(src: Layout) -> bool:
    """Whether some rank contributes twice to one element."""
    layout = blobs.read_layout(src.save())
    seen: set[tuple[int, int, int]] = set()
    firsts = oracle.first_ids(layout.spec)
    for piece in layout.pieces:
        name, _, shape = layout.spec.tensors[piece.tensor]
        ids = oracle.ids_of(shape, firsts[name], piece.start, piece.size).ravel().tolist()
        mine = {(piece.rank, piece.tensor, each) for each in ids}
        if seen & mine:
            return True
        seen |= mine
    return False


@pytest.mark.threads
@settings(max_examples=60)
@given(pair=reductions(), seed=st.integers(0, 2**31))
def test_every_rank_gets_all_contributions(pair, seed):
    src, dst = pair
    if has_overlap(src):
        with pytest.raises(UsageError, match="contributes twice"):
            _core.make_plan(src.core, dst.core)
        return
    source, target = blobs.read_layout(src.save()), blobs.read_layout(dst.save())
    values = contributions(source, seed)
    expected = combined(source, src.core.op, values)
    bucket_bytes = random.Random(seed).choice(BUCKET_BYTES)

    def main(comm) -> None:
        held = local_tensors(source, values, comm.rank) if comm.rank in src.ranks else None
        resharder = Resharder(held, src, dst, comm=comm, bucket_bytes=bucket_bytes)
        resharder.plan.check()
        resharder.schedule.check()
        assert _core.Schedule.load(resharder.schedule.save()) == resharder.schedule
        for _ in range(2):
            check_result(target, expected, comm.rank, resharder.run())
            assert resharder.report.received_over_bound == 1

    run_threads(WORLD, main, transport="loopback")


@pytest.mark.threads
@pytest.mark.parametrize("bucket_bytes", [8, 12, 1 << 20])
def test_a_rank_that_wants_elements_twice(bucket_bytes):
    """It gets more than a group of the owner holds: buckets keep their size all the same."""
    spec = Spec.from_tensors([("w", (5,), "float32")])
    stored = [(0, "a"), (1, "a"), (1, "b"), (1, "c")]
    dst = Layout(
        _core.Layout(
            "twice",
            spec.core,
            [0, 1],
            [(rank, name, [5], "float32") for rank, name in stored],
            [("w", rank, name, [0], [5], 0, [1]) for rank, name in stored],
        ),
        spec,
    )

    def main(comm) -> None:
        mine = {"w": torch.arange(5.0) * (comm.rank + 1)}
        src = Layout.replicated(2).partial("sum").bind(spec)
        resharder = Resharder(mine, src, dst, comm=comm, bucket_bytes=bucket_bytes)
        resharder.schedule.check()
        for tensor in resharder.run().values():
            assert tensor.equal(torch.arange(5.0) * 3)

    run_threads(2, main, transport="loopback")


def seed_case(world: int, dtype: str, seed: int) -> tuple[Spec, list[dict[str, torch.Tensor]]]:
    spec = Spec.from_tensors([("a", (37, 21), dtype), ("b", (5,), dtype), ("c", (64, 48), dtype)])
    make = torch.Generator().manual_seed(seed)
    return spec, [
        {
            name: torch.randn(shape, generator=make).to(getattr(torch, dtype))
            for name, shape, _ in spec.tensors
        }
        for _ in range(world)
    ]


def reduce_each(comm, dtype: str, op: str, dst: str, ways: list[tuple[int, bool]]):
    return [reduce_on(comm, dtype, op, dst, *way) for way in ways]


def reduce_on(comm, dtype: str, op: str, dst: str, bucket_bytes: int, verify: bool):
    spec, held = seed_case(comm.world, dtype, 5)
    src = Layout.replicated(comm.world).bind(spec).partial(op)
    target = LayoutRule.parse(dst).bind(spec)
    resharder = Resharder(
        held[comm.rank], src, target, comm=comm, bucket_bytes=bucket_bytes, verify=verify
    )
    return {name: tensor.float().tolist() for name, tensor in resharder.run().items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_bits_by_every_transport_and_bucket_size(dtype):
    """And the bits of the plain sum in rank order, in float32, rounded once."""
    _, held = seed_case(3, dtype, 5)
    expected = {}
    for name in held[0]:
        total = held[0][name].float()
        for each in held[1:]:
            total = total + each[name].float()
        expected[name] = total.to(held[0][name].dtype).float().tolist()
    ways = [(64, True), (4096, False), (32 << 20, False)]
    for transport in ("loopback", "shm", "cma"):
        args = (dtype, "sum", "replicated(3)", ways)
        start = run_threads if transport == "loopback" else run_ranks
        for results in start(3, reduce_each, *args, transport=transport):
            for result, way in zip(results, ways, strict=True):
                assert result == expected, (transport, way)


@pytest.mark.threads
def test_into_another_type():
    """Contributions travel as they are, and only the sum is rounded."""
    spec = Spec.from_tensors([("w", (1000,), "bfloat16")])
    held = [torch.randn(1000).bfloat16() for _ in range(3)]

    def main(comm):
        src = Layout.replicated(3).bind(spec).partial("mean")
        dst = Layout.replicated(3).bind(spec.with_dtype("float32"))
        return Resharder({"w": held[comm.rank]}, src, dst, comm=comm).run()["w"].clone()

    wanted = (held[0].float() + held[1].float() + held[2].float()) / 3
    for found in run_threads(3, main, transport="loopback"):
        assert torch.equal(found, wanted)


def test_a_rule_can_be_partial():
    """Its text too; the reduction is into shards."""
    rule = LayoutRule.parse("partial(sum, replicated(2))")
    assert rule == Layout.replicated(2).partial("sum")
    assert str(rule) == "partial(sum, replicated(2))"

    def main(comm):
        held = {"w": torch.arange(6.0) + comm.rank}
        return Resharder(held, str(rule), "fsdp2(2)", comm=comm).run()["w"].tolist()

    assert run_threads(2, main, transport="loopback") == [[1, 3, 5], [7, 9, 11]]


def test_what_cannot_be():
    spec = Spec.from_tensors([("w", (4,), "int32")])
    whole = Layout.replicated(2).bind(spec)
    with pytest.raises(UsageError, match="mean of int32"):
        whole.partial("mean")
    with pytest.raises(UsageError, match="'avg' is not a reduction"):
        whole.partial("avg")
    with pytest.raises(UsageError, match="a destination cannot be partial"):
        _core.make_plan(whole.core, whole.partial("sum").core)

    def main(comm):
        held = {"w": torch.ones(4, dtype=torch.int32)}
        with pytest.raises(UsageError, match="Leave alias out"):
            Resharder(held, whole.partial("sum"), whole, comm=comm, alias=True)
        with pytest.raises(UsageError, match="cannot be streamed"):
            Resharder(held, whole.partial("sum"), whole, comm=comm).stream(print)

    run_threads(2, main, transport="loopback")


@pytest.mark.parametrize("change", ["amid", "missing", "more", "group", "early", "late"])
def test_a_wrong_plan_or_schedule_is_found(change):
    spec = Spec.from_tensors([("w", (40,), "float32")])
    whole = Layout.replicated(3).bind(spec)
    plan = _core.make_plan(whole.partial("sum").core, whole.core)
    schedule = blobs.read_schedule(_core.make_schedule(plan, 1, 64))
    ends = {"amid": [57, 108, 160], "missing": [56, 108, 159], "more": [56, 108, 164]}
    assert schedule.plan.ends == [[56, 108, 160]]
    if change in ends:
        plan = replace(schedule.plan, ends=[ends[change]])
        with pytest.raises((_core.InternalError, UsageError)):
            _core.Plan.load(blobs.write_plan(plan))
        return
    copies = [i for i, each in enumerate(schedule.buckets) if each.step == 1 and each.src == 1]
    folded = [i for i, each in enumerate(schedule.buckets) if each.feeds >= 0]
    first, last = copies[0], copies[-1]
    if change == "group":
        rows = blobs.edited(schedule.buckets, first, gate=schedule.buckets[last].gate)
    elif change == "early":
        rows = blobs.edited(schedule.buckets, first, gate=-1)
    else:
        rows = blobs.edited(schedule.buckets, folded[0], feeds=-1)
    with pytest.raises(_core.InternalError):
        _core.Schedule.load(blobs.write_schedule(replace(schedule, buckets=rows)))
