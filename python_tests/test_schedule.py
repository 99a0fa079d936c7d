"""Schedules against the oracle, their bounds, and schedules that are wrong."""

import math
from dataclasses import replace

import blobs
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layouts import bind, pairs
from ranks import run_threads

from hybridengine import Communicator, InternalError, Resharder, Spec, UsageError, _core

BUCKET_BYTES = st.one_of(st.integers(8, 64), st.sampled_from([100, 256, 1000, 2**15, 2**25]))


def plan_of(pair) -> _core.Plan:
    return _core.make_plan(pair[0].core, pair[1].core)


@settings(max_examples=200)
@given(pairs(), BUCKET_BYTES, st.booleans())
def test_buckets_carry_every_move_once(pair, bucket_bytes, in_order):
    oracle.check_schedule(plan_of(pair), bucket_bytes, in_order)


@given(pairs(), BUCKET_BYTES)
def test_pairs_are_those_of_all_schedules(pair, bucket_bytes):
    """Their bytes and buckets are counted without making buckets, where nothing needs a gap."""
    plan, sums = plan_of(pair), {}
    for bucket in oracle.all_buckets(plan, bucket_bytes).buckets:
        size, count = sums.get((bucket.src, bucket.dst), (0, 0))
        sums[bucket.src, bucket.dst] = (size + bucket.num_bytes, count + 1)
    assert _core.pairs_of(plan, bucket_bytes) == [(*key, *sums[key]) for key in sorted(sums)]


@given(pairs(), st.integers(8, 200))
def test_buckets_of_a_pair_are_full_but_for_the_last(pair, bucket_bytes):
    """A cut happens only where no element fits any more, so no pair has a bucket too many."""
    schedule = oracle.all_buckets(plan_of(pair), bucket_bytes)
    used_bytes: dict[tuple[int, int], int] = {}
    for bucket in sorted(schedule.buckets, key=lambda each: each.round):
        used = used_bytes.get((bucket.src, bucket.dst), bucket_bytes)
        first = schedule.plan.moves[bucket.items[0].move]
        each = oracle.wire_bytes(first.src_dtype, first.dst_dtype)
        aligned = -(-used // each) * each
        assert bucket_bytes - aligned < each
        used_bytes[bucket.src, bucket.dst] = bucket.num_bytes


@settings(max_examples=150)
@given(pairs(), st.integers(8, 120))
def test_in_order_buckets_keep_to_their_window(pair, bucket_bytes):
    """Of what a destination receives, in plan order, a bucket reaches over bucket_bytes at most; it
    touches one tensor, or several that are together no larger (with those between them); and what
    is wholly behind it travels in a later round."""
    schedule = oracle.all_buckets(plan_of(pair), bucket_bytes, in_order=True)
    plan = schedule.plan
    sizes = [math.prod(each.shape) * oracle.BYTES[each.dtype] for each in plan.dst.locals]
    items = [
        (item.move, number, item)
        for number, bucket in enumerate(schedule.buckets)
        for item in bucket.items
    ]
    received: dict[int, int] = {}
    reach: dict[int, list[int]] = {}
    tensors: dict[int, set[int]] = {}
    for move_index, number, item in sorted(items, key=lambda row: (row[0], row[1])):
        bucket, move = schedule.buckets[number], plan.moves[move_index]
        begin = received.get(bucket.dst, 0)
        end = begin + math.prod(item.size) * oracle.wire_bytes(move.src_dtype, move.dst_dtype)
        received[bucket.dst] = end
        reach[number] = [reach.get(number, [begin])[0], end]
        tensors.setdefault(number, set()).add(plan.dst.pieces[move.dst_piece].local)
    for number, (begin, end) in reach.items():
        assert end - begin <= bucket_bytes
        touched = range(min(tensors[number]), max(tensors[number]) + 1)
        assert len(touched) == 1 or sum(sizes[each] for each in touched) <= bucket_bytes
        bucket = schedule.buckets[number]
        for other, (start, _) in reach.items():
            if schedule.buckets[other].dst == bucket.dst and start >= begin + bucket_bytes:
                assert schedule.buckets[other].round > bucket.round


def test_alignment_is_no_payload():
    """Between items of different widths a bucket has gaps: in its size, never in a report."""
    full = {"a": torch.ones(3, dtype=torch.int8), "b": torch.ones(2), "c": torch.ones(1).double()}

    def main(comm: Communicator) -> tuple[int, ...]:
        resharder = Resharder(full if comm.rank == 0 else None, "hf", "hf@1", comm=comm)
        resharder.run()
        report = resharder.report
        pairs = [received + sent for _, received, sent in report.pairs]
        gaps = resharder.schedule.buckets[0]["num_bytes"] - 19
        return gaps, report.sent_bytes, report.received_bytes, report.bound_bytes, *pairs

    assert run_threads(2, main, transport="loopback") == [(5, 19, 0, 0, 19), (5, 0, 19, 19, 19)]


@given(pairs(), BUCKET_BYTES, st.booleans())
def test_saved_schedules_are_equal_schedules(pair, bucket_bytes, in_order):
    plan = plan_of(pair)
    for rank in sorted({*pair[0].ranks, *pair[1].ranks}):
        schedule = _core.make_schedule(plan, rank, bucket_bytes, in_order)
        loaded = _core.Schedule.load(schedule.save())
        assert loaded == schedule
        assert loaded.save() == schedule.save() and loaded.digest() == schedule.digest()
        assert blobs.write_schedule(blobs.read_schedule(schedule)) == schedule.save()
        assert loaded.incoming == schedule.incoming
        assert loaded.outgoing == schedule.outgoing


def moving(*rows: tuple[str, tuple[int, ...], str], bucket_bytes: int) -> oracle.Buckets:
    """Everything from rank 0 to rank 1."""
    spec = Spec.from_tensors(rows)
    plan = _core.make_plan(bind("hf@0", spec), bind("hf@1", spec))
    return oracle.check_schedule(plan, bucket_bytes)


def test_a_tensor_larger_than_a_bucket_is_cut():
    made = moving(("w", (20, 20), "float32"), bucket_bytes=1024)
    assert [bucket.num_bytes for bucket in made.buckets] == [1024, 576]


def test_an_exact_fit_has_no_trailer():
    made = moving(("w", (16, 16), "float32"), bucket_bytes=1024)
    assert [(bucket.num_bytes, len(bucket.items)) for bucket in made.buckets] == [(1024, 1)]


def test_small_tensors_share_a_bucket_with_the_rest_of_a_large_one():
    rows = [("a", (20, 20), "float32"), ("b", (16, 16), "float32"), ("c", (3,), "float32")]
    made = moving(*rows, bucket_bytes=1024)
    assert [bucket.num_bytes for bucket in made.buckets] == [1024, 1024, 588]
    assert len(moving(*rows, bucket_bytes=2**25).buckets) == 1


def test_offsets_are_aligned_to_the_element():
    rows = [("a", (3,), "int8"), ("b", (1,), "float64"), ("c", (1,), "int16"), ("d", (1,), "int32")]
    (bucket,) = moving(*rows, bucket_bytes=64).buckets
    assert [item.offset for item in bucket.items] == [0, 8, 16, 20]
    assert bucket.num_bytes == 24


def test_offsets_beyond_32_bits():
    rows = [("a", (1610612736,), "uint8"), ("b", (1610612736,), "uint8")]
    spec = Spec.from_tensors(rows)
    plan = _core.make_plan(bind("hf@0", spec), bind("hf@1", spec))
    schedule = _core.make_schedule(plan, 1, 2**40)
    schedule.check()
    (bucket,) = schedule.buckets
    assert bucket["items"][1][1] == 1610612736
    assert bucket["num_bytes"] == 3221225472
    wide = Spec.from_tensors([("w", (65536, 32769), "bfloat16")])
    plan = _core.make_plan(bind("hf@0", wide), bind("hf@1", wide))
    schedule = _core.make_schedule(plan, 0)
    schedule.check()
    assert sum(bucket["num_bytes"] for bucket in schedule.buckets) == 4295098368


@pytest.mark.parametrize("bucket_bytes", [0, -1, 3, -(2**63)])
def test_a_bucket_must_hold_an_element(bucket_bytes):
    spec = Spec.from_tensors([("w", (4,), "float32")])
    plan = _core.make_plan(bind("hf@0", spec), bind("hf@1", spec))
    with pytest.raises(ValueError, match=f"bucket_bytes is {bucket_bytes}.*4 bytes"):
        _core.make_schedule(plan, 0, bucket_bytes)
    with pytest.raises(ValueError, match=f"bucket_bytes is {bucket_bytes}.*4 bytes"):
        _core.pairs_of(plan, bucket_bytes)


def test_bucket_bytes_may_be_anything_larger():
    spec = Spec.from_tensors([("w", (4,), "float32")])
    plan = _core.make_plan(bind("hf@0", spec), bind("hf@1", spec))
    for bucket_bytes in (4, 5, 2**63 - 1):
        oracle.check_schedule(plan, bucket_bytes)


def test_nothing_to_move_needs_no_bucket():
    spec = Spec.from_tensors([("a", (0, 6), "float32"), ("b", (2, 0, 3), "int8")])
    plan = _core.make_plan(bind("fsdp2(4)", spec), bind("replicated(2)@3-4", spec))
    assert all(_core.make_schedule(plan, rank).num_buckets == 0 for rank in range(6))
    whole = Spec.from_tensors([("a", (4, 6), "float32")])
    plan = _core.make_plan(bind("replicated(3)", whole), bind("fsdp2(3)", whole))
    assert all(_core.make_schedule(plan, rank).num_buckets == 0 for rank in range(4))


# What is wrong with a schedule must be found by its check, with a digest that fits.


def small() -> blobs.Schedule:
    """Of rank 1, which sends and receives."""
    spec = Spec.from_tensors([("a", (6, 4), "float32"), ("b", (5,), "int16")])
    plan = _core.make_plan(bind("fsdp2(2,replicas=2)", spec), bind("fsdp2(3)@1-3", spec))
    return blobs.read_schedule(_core.make_schedule(plan, 1, 24))


def load(schedule: blobs.Schedule, buckets: list[blobs.Bucket]) -> _core.Schedule:
    return _core.Schedule.load(blobs.write_schedule(replace(schedule, buckets=buckets)))


def test_a_schedule_written_by_hand_is_a_schedule():
    load(small(), small().buckets).check()


def test_missing_and_repeated_buckets_and_items_are_found():
    made = small()
    for index, bucket in enumerate(made.buckets):
        with pytest.raises((InternalError, UsageError)):
            load(made, made.buckets[:index] + made.buckets[index + 1 :])
        with pytest.raises((InternalError, UsageError)):
            load(made, [*made.buckets, bucket])
        with pytest.raises((InternalError, UsageError)):
            load(made, blobs.edited(made.buckets, index, items=bucket.items[1:]))
        with pytest.raises((InternalError, UsageError)):
            load(made, blobs.edited(made.buckets, index, items=bucket.items + bucket.items[:1]))


@pytest.mark.parametrize(
    "changes",
    [
        {"src": 3},
        {"dst": 0},
        {"src": -1},
        {"dst": 2**31 - 1},
        {"step": 1},
        {"num_bytes": 25},
        {"num_bytes": -1},
        {"num_bytes": 2**62},
        {"items": ()},
        {"round": -1},
        {"plain": 0},
        {"gate": 0},
        {"feeds": 0},
        {"feeds": 2**30},
    ],
)
def test_a_changed_bucket_is_found(changes):
    made = small()
    with pytest.raises((InternalError, UsageError)):
        load(made, blobs.edited(made.buckets, 0, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"move": 10**6},
        {"move": -1},
        {"offset": -4},
        {"offset": 2},
        {"offset": 2**62},
        {"start": (5, 3)},
        {"size": (0, 4)},
        {"size": (2**62, 2**62)},
    ],
)
def test_a_changed_item_is_found(changes):
    made = small()
    index = next(i for i, each in enumerate(made.buckets) if len(each.items[0].size) == 2)
    items = tuple(blobs.edited(list(made.buckets[index].items), 0, **changes))
    writable = blobs.edited(made.buckets, index, items=items)
    if "move" in changes:
        items = (blobs.Item(changes["move"], 0, (0, 0), (1, 1)), *items[1:])
        writable = blobs.edited(made.buckets, index, items=items)
    with pytest.raises((InternalError, UsageError)):
        load(made, writable)


def test_items_that_overlap_and_leave_a_gap_of_the_same_size_are_found():
    """Counting elements is not enough: the oracle of a cut is which elements it has."""
    spec = Spec.from_tensors([("w", (4,), "int8")])
    plan = _core.make_plan(bind("hf@0", spec), bind("hf@1", spec))
    made = blobs.read_schedule(_core.make_schedule(plan, 1, 2))
    item = made.buckets[1].items[0]
    shifted = (blobs.Item(item.move, item.offset, (1,), item.size),)
    with pytest.raises(InternalError):
        load(made, blobs.edited(made.buckets, 1, items=shifted))
