"""masked_all_reduce as a call: what travels, what it refuses, what it remembers, known cases."""

from __future__ import annotations

import math
import re
import time
from functools import partial

import pytest
import torch
from masked_oracle import entries_of, expected, same_bits
from ranks import run_ranks, run_threads, thread_outcomes

from hybridengine import Communicator, UsageError, _core, masked_all_reduce

# --- bytes ---

by_wire = partial(masked_all_reduce, route="wire")  # which sends the fewest


def formula(world: int, densities: list[float], union: float, size: int, counts: bool, bits=1.0):
    """Bytes per element that rank 0 sends, from docs/masked.md; `bits` are those of a mask."""
    meta = bits * (math.ceil(math.log2(world + 1)) if counts else 1) / 8
    mean = sum(densities) / world
    masked = bits / 8 + densities[0] * size + meta + union * size
    dense = 2 * size + bits / 8 + (meta if counts else 0)
    compact_costs_more = bits / 8 + mean * size + meta + union * size > 2 * size + bits / 8
    return (dense if compact_costs_more and not counts else masked) * (world - 1) / world, (
        dense * (world - 1) / world
    )


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("counts", [False, True])
def test_bytes_keep_to_the_formula(world, dtype, counts):
    size = getattr(torch, dtype).itemsize
    elems = (1 << 20) // size
    thresholds = [2.0, 0.99, 0.9, 0.5, 0.1, 0.02, 0.0]

    def main(comm: Communicator):
        generator = torch.Generator().manual_seed(comm.rank)
        values = torch.ones(elems, dtype=getattr(torch, dtype))
        scores = torch.rand(elems, generator=generator)
        return scores, [
            by_wire(values, scores, each, granularity="element", counts=counts, comm=comm)
            for each in thresholds
        ]

    ranks = run_threads(world, main, transport="loopback")
    for case, threshold in enumerate(thresholds):
        keep = torch.stack([each[0] >= threshold for each in ranks])
        densities = [float(each.double().mean()) for each in keep]
        union = float(keep.any(0).double().mean())
        wire, dense = formula(world, densities, union, size, counts)
        result = ranks[0][1][case]
        assert result.wire_bytes == pytest.approx(wire * elems, rel=0.02), threshold
        assert result.dense_bytes == pytest.approx(dense * elems, rel=0.02)
        assert result.kept == int(keep[0].sum())


@pytest.mark.parametrize("threshold", [2.0, 0.85, 0.45, 0.0])
def test_bytes_of_rows(threshold):
    rows, width, world = 3000, 300, 3

    def main(comm: Communicator):
        scores = (torch.arange(rows) * 7 + 3 * comm.rank) % 10 / 10  # even over the shares
        values = torch.full((rows, width), 2.0**comm.rank)
        return scores, by_wire(values, scores, threshold, op="sum", fill=9.0, comm=comm)

    ranks = run_threads(world, main, transport="loopback")
    keep = torch.stack([each[0] >= threshold for each in ranks])
    total = sum(each * 2.0**rank for rank, each in enumerate(keep))
    wanted = torch.where(keep.any(0), total, 9.0)[:, None].expand(rows, width)
    assert all(torch.equal(each[1].values, wanted) for each in ranks)
    densities = [float(each.double().mean()) for each in keep]
    union = float(keep.any(0).double().mean())
    wire, dense = formula(world, densities, union, 4, True, bits=1 / width)
    # 200 bytes of flags and of masks filled up to whole words.
    assert ranks[0][1].wire_bytes == pytest.approx(wire * rows * width, rel=0.02, abs=200)
    assert ranks[0][1].dense_bytes == pytest.approx(dense * rows * width, rel=0.02)


def test_bytes_are_those_that_travelled():
    """Nobody takes part: masks only. One rank does: its values, and those of the owners."""

    def main(comm: Communicator):
        values = torch.ones(1 << 20)
        scores = torch.full((1 << 20,), 1.0 if comm.rank == 2 else 0.0)
        run = [by_wire(values, scores, t, granularity="element", comm=comm) for t in (2.0, 0.5)]
        return [each.wire_bytes for each in run]

    ranks = run_threads(4, main, transport="loopback")
    share = (1 << 20) // 4
    for rank, (nobody, one) in enumerate(ranks):
        assert nobody == pytest.approx(3 * share * (1 / 8 + 1 / 8), rel=0.01)
        sent = 3 * share * (1 / 8 + 1 / 8 + 4 + (4 if rank == 2 else 0))
        assert one == pytest.approx(sent, rel=0.01)


def test_bytes_without_payload():
    """Nothing arrives, so nobody has a result; what would be sent to owners is counted."""

    def main(comm: Communicator):
        scores = (torch.arange(1 << 18) % 4 / 4).reshape(512, 512)
        values = torch.ones(512, 512)
        return by_wire(values, scores, 0.5, granularity="element", comm=comm)

    share = (1 << 18) / 2
    for result in run_threads(2, main, transport="null"):
        # Half of the values to the owner, and of its own half the results that it knows of itself.
        assert result.wire_bytes == pytest.approx(share * (1 / 8 + 2 + 1 / 8 + 2), rel=0.01)
        assert result.kept == 1 << 17


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("bucket", [1 << 20, "auto"])
def test_memory_stays_within_three_buckets(world, bucket):
    def main(comm: Communicator) -> int:
        values = [torch.ones(3 << 20)]
        reduction = _core.MaskedReduction(
            values,
            [torch.ones(3 << 20)],
            [torch.empty(3 << 20)],
            None,
            None,
            granularity="element",
            op="mean",
            threshold=0.5,
            fill=0.0,
            bucket_bytes=0 if bucket == "auto" else bucket,
        )
        assert reduction.read_scores() == -1
        with comm.call():
            reduction.run(comm.core, 1)
        return reduction.staging_bytes

    limit = 3 * (32 << 20 if bucket == "auto" else bucket)
    pages = 3 * world * 8192  # a slot begins with a page and has room behind it
    assert max(run_threads(world, main, transport="loopback")) <= limit + pages


# --- what it refuses ---

BAD = {
    "threshold": (
        dict(threshold=0.5),
        dict(threshold=0.75),
        r"threshold is 0\.5 .* 0\.75 on rank 2",
    ),
    "op": (dict(op="sum"), dict(op="mean"), "op is sum .* mean on rank 2"),
    "fill": (dict(fill=0.0), dict(fill=1.0), r"fill is 0\.0 .* 1\.0 on rank 2"),
    "counts": (dict(counts=True), dict(counts=False), "counts is True .* False on rank 2"),
    "bucket": (
        dict(bucket_bytes=4096),
        dict(bucket_bytes="auto"),
        "bucket_bytes is 4096 .* auto on rank 2",
    ),
    "shape": (dict(), dict(values=torch.ones(9), scores=torch.ones(9)), r"tensors is \[\[8, "),
    "dtype": (dict(), dict(values=torch.ones(8).double()), "float64"),
    "granularity": (dict(), dict(granularity="tensor", scores=1.0), "granularity is element"),
}
WRONG = {
    "nan score": (dict(scores=torch.tensor([0.0] * 7 + [math.nan])), "rank 2: a score of tensor 0"),
    "nan score of nothing": (
        dict(values=torch.ones(0), scores=math.nan, granularity="tensor"),
        "rank 2: a score of tensor 0",
    ),
    "nan threshold": (dict(threshold=math.nan), "rank 2: threshold is NaN"),
    "scores": (dict(scores=torch.ones(7)), r"rank 2: scores does not fit tensor 0: it is \[7\]"),
    "integer scores": (dict(scores=torch.ones(8).int()), "rank 2: scores are int32"),
    "out": (dict(out=torch.ones(8).half()), "rank 2: out does not fit tensor 0"),
    "shared": (dict(out="scores"), "rank 2: tensors share memory that is written"),
    "expanded": (dict(out=torch.ones(1).expand(8)), "rank 2: out tensor '0' is expanded"),
    "residual": (dict(residual=torch.ones(2)), "rank 2: residual does not fit tensor 0"),
    "no tensor": (dict(values=3.0), "rank 2: tensor 0 is a float"),
    "op": (dict(op="prod"), "rank 2: op=prod is not an operation"),
    "granularity": (dict(granularity="block"), "rank 2: granularity=block is not one"),
    "bucket": (dict(bucket_bytes=0), "rank 2: bucket_bytes is 0"),
    "threshold": (dict(threshold="high"), "rank 2: threshold is 'high'"),
    "mean of integers": (
        dict(values=torch.ones(8).int(), op="mean"), "rank 2: cannot take the mean of int32"),
    "fill of integers": (
        dict(values=torch.ones(8).to(torch.uint8), fill=256), "rank 2: fill does not fit uint8"),
    "bool": (dict(values=torch.ones(8).bool()), "rank 2: cannot reduce bool"),
    "count": (dict(values=[torch.ones(8)], scores=[]), "rank 2: there are 0 scores, 1 tensors"),
}  # fmt: skip


def refused(comm: Communicator, usual: dict, odd: dict) -> str:
    """What this rank raises when rank 2 passes something else; then all is well again."""
    given = dict(values=torch.ones(8), scores=torch.ones(8), threshold=0.5, op="sum",
                 granularity="element") | usual  # fmt: skip
    given |= odd if comm.rank == 2 else {}
    if isinstance(given.get("out"), str):
        given["out"] = given["scores"]
    tensors = [v for v in given.values() if isinstance(v, torch.Tensor)]
    before = [each.clone() for each in tensors]
    text = ""
    try:
        masked_all_reduce(**given, comm=comm)
    except UsageError as error:
        text = str(error)
    assert all(map(same_bits, tensors, before))
    again = masked_all_reduce(torch.ones(8), torch.ones(8), 0.5, op="sum", comm=comm)
    assert torch.equal(again.values, torch.full((8,), 3.0))
    return text


@pytest.mark.parametrize("case", BAD)
def test_ranks_that_differ_are_told_both_sides(case):
    usual, odd, words = BAD[case]
    texts = run_threads(3, refused, usual, odd, transport="loopback")
    assert len(set(texts)) == 1
    assert "differently" in texts[0]
    assert re.search(words, texts[0]), texts[0]


@pytest.mark.parametrize("case", WRONG)
def test_what_one_rank_does_wrong_all_ranks_raise(case):
    odd, words = WRONG[case]
    texts = run_threads(3, refused, {}, odd, transport="loopback")
    assert len(set(texts)) == 1
    assert texts[0].startswith(words.split(r"\[")[0]), texts[0]


def test_a_rank_that_does_not_call_is_named():
    def main(comm: Communicator) -> None:
        if comm.rank == 1:
            time.sleep(3)
            return
        masked_all_reduce(torch.ones(4), torch.ones(4), 0.5, comm=comm)

    begin = time.monotonic()
    outcomes = thread_outcomes(3, main, transport="loopback", timeout=1)
    assert time.monotonic() - begin < 10
    for rank in (0, 2):
        assert outcomes[rank][1] in ("TimeoutError", "TransportError")
        assert "rank 1" in outcomes[rank][2]


# --- residuals ---


@pytest.mark.parametrize("granularity", ["element", "row", "tensor"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_residual_keeps_what_was_masked(granularity, dtype):
    dtype = getattr(torch, dtype)

    def main(comm: Communicator):
        generator = torch.Generator().manual_seed(comm.rank)
        values = (torch.rand(120, 31, generator=generator) * 9).to(dtype)
        residual = (torch.rand(31, 120, generator=generator) * 9).to(dtype).t()
        dims = {"element": 2, "row": 1, "tensor": 0}[granularity]
        scores = torch.rand(values.shape[:dims], generator=generator)
        before = values.clone(), residual.clone()
        result = masked_all_reduce(
            values,
            scores,
            0.5,
            op="sum",
            granularity=granularity,
            residual=residual,
            comm=comm,
            bucket_bytes=3000,
        )
        assert same_bits(values, before[0])
        return before, scores, residual, result.values

    ranks = run_threads(3, main, transport="loopback")
    taking_part = [before[0] + before[1] for before, *_ in ranks]
    keep = [entries_of(scores, taking_part[0], 0.5) for _, scores, *_ in ranks]
    wanted, _ = expected(taking_part, keep, "sum")
    for rank, (_, _, residual, found) in enumerate(ranks):
        assert same_bits(found, wanted)
        left = torch.where(keep[rank], torch.zeros_like(taking_part[rank]), taking_part[rank])
        assert same_bits(residual.contiguous(), left)


def test_residual_loses_nothing_over_many_steps():
    """What was sent and what is still held add up to all that was given: integers, so exactly."""

    def main(comm: Communicator):
        generator = torch.Generator().manual_seed(comm.rank)
        residual, given, received = torch.zeros(500), torch.zeros(500), torch.zeros(500)
        for _ in range(12):
            values = torch.randint(-9, 9, (500,), generator=generator).float()
            given += values
            scores = (values + residual).abs()
            received += masked_all_reduce(
                values, scores, 6.0, op="sum", granularity="element", residual=residual, comm=comm
            ).values
        return given, residual, received

    ranks = run_threads(3, main, transport="loopback")
    total = sum(given - residual for given, residual, _ in ranks)
    assert all(torch.equal(received, total) for *_, received in ranks)


def test_residual_forgets_what_is_not_finite():
    def main(comm: Communicator):
        values = torch.tensor([math.nan, math.inf, 2.0, 3.0])
        residual = torch.tensor([1.0, 1.0, 1.0, 1.0])
        scores = torch.tensor([0.0, 0.0, 0.0, 1.0])
        result = masked_all_reduce(values, scores, 0.5, residual=residual, comm=comm)
        return residual.tolist(), result.values.tolist()

    for residual, values in run_threads(2, main, transport="loopback"):
        assert residual == [1.0, 1.0, 3.0, 0.0]
        assert values == [0.0, 0.0, 0.0, 4.0]


# --- known cases ---


def b26(comm: Communicator, dtype: str) -> dict:
    kind = getattr(torch, dtype)
    gradient = torch.tensor([2.0 * (comm.rank + 1)], dtype=kind)
    score = [1.0, 1.0, 0.0, 1.0][comm.rank]
    silent = [
        masked_all_reduce(gradient, score, 0.5, op=op, granularity="tensor", comm=comm)
        for op in ("mean", "sum")
    ]
    values = torch.tensor([comm.rank + 1.0, 10.0 * (comm.rank + 1)], dtype=kind)
    mask = torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])[comm.rank]
    element = masked_all_reduce(values, mask, 0.5, granularity="element", counts=True, comm=comm)
    return {
        "mean": silent[0].values.item(),
        "sum": silent[1].values.item(),
        "count": silent[0].counts.item(),
        "element": element.values.tolist(),
        "counts": element.counts.tolist(),
    }


@pytest.mark.parametrize("transport", ["shm", "cma"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_b26_mean_over_those_that_contribute(transport, dtype):
    """A rank whose micro-batch was filtered out is not counted: 14 / 3, not 14 / 4."""
    ranks = run_ranks(4, b26, dtype, transport=transport)
    third = torch.tensor(14 / 3, dtype=getattr(torch, dtype)).item()
    wanted = {"mean": third, "sum": 14.0, "count": 3, "element": [3.0, 25.0], "counts": [3, 4]}
    assert ranks == [wanted] * 4


def b27(comm: Communicator) -> list:
    def call(values: list[float], threshold: float):
        tensor = torch.tensor(values)
        result = masked_all_reduce(
            tensor, tensor.abs(), threshold, op="sum", granularity="element", counts=True,
            comm=comm,
        )  # fmt: skip
        return result.values.tolist(), result.counts.tolist()

    tenths = [0.5] * 5
    spike = [5.0, 0.0, 0.0, 0.0, 0.0] if comm.rank == 2 else [0.0] * 5
    results = [call(tenths, 1.0), call(spike, 1.0), call(tenths, 0.5), call(tenths, -1.0)]
    try:
        call(tenths, math.nan)
    except ValueError as error:
        results.append(str(error))
    return results


@pytest.mark.parametrize("transport", ["shm", "cma", "loopback"])
def test_b27_nothing_above_the_threshold(transport):
    """Empty selections come back in time; a score equal to the threshold takes part."""
    ranks = run_ranks(4, b27, transport=transport, limit=30)
    for found in ranks:
        assert found[:4] == [
            ([0.0] * 5, [0] * 5),
            ([5.0, 0.0, 0.0, 0.0, 0.0], [1, 0, 0, 0, 0]),
            ([2.0] * 5, [4] * 5),
            ([2.0] * 5, [4] * 5),
        ]
        assert "threshold is NaN" in found[4]


def test_gradients_of_a_filtered_micro_batch():
    """One rank's gradients are NaN because nothing was left to learn from: it stays silent."""

    def main(comm: Communicator):
        shapes = [(40, 16), (16,), (), (3, 4, 5)]
        gradients = [torch.full(each, float(comm.rank + 1)) for each in shapes]
        if comm.rank == 1:
            gradients = [each * math.nan for each in gradients]
        score = 0.0 if comm.rank == 1 else 1.0
        masked_all_reduce(
            gradients, [score] * len(shapes), 0.5, granularity="tensor", out=gradients, comm=comm
        )
        return gradients

    for gradients in run_threads(3, main, transport="shm"):
        assert all(bool((each == 2.0).all()) for each in gradients)
