"""masked_all_reduce: every rule against an oracle, on every transport."""

from __future__ import annotations

import math
import pickle
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_oracle import entries_of, expected, in_float64, same_bits
from ranks import MEDIA, run_ranks, run_threads

from hybridengine import Communicator, MaskedResult, _core, masked_all_reduce

FLOATING = ["float32", "float64", "bfloat16", "float16"]
INTEGER = ["int64", "int32", "int16", "int8", "uint8"]
GRANULARITIES = ["element", "row", "tensor"]
SHAPES = [(1000, 3), (0, 4), (513,), (2, 700), (), (4, 0), (7, 5, 3)]
TRANSPORTS = MEDIA


def made(shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if getattr(torch, dtype).is_floating_point:
        return torch.randn(shape, generator=generator).to(getattr(torch, dtype))
    return torch.randint(0, 30, shape, generator=generator).to(getattr(torch, dtype))


def score(values: torch.Tensor, granularity: str, seed: int) -> torch.Tensor:
    dims = {"element": values.dim(), "row": 1, "tensor": 0}[granularity]
    return torch.rand(values.shape[:dims], generator=torch.Generator().manual_seed(seed))


def inputs(rank: int, dtype: str, granularity: str, shapes=SHAPES):
    values = [made(shape, dtype, 100 * rank + i) for i, shape in enumerate(shapes)]
    scores = [score(each, granularity, 100 * rank + i + 50) for i, each in enumerate(values)]
    return values, scores


def reduce_all(comm: Communicator, dtype: str, granularity: str, threshold: float, **options):
    """One rank's call on the standard inputs."""
    values, scores = inputs(comm.rank, dtype, granularity)
    return masked_all_reduce(
        values, scores, threshold, granularity=granularity, comm=comm, **options
    )


def check(results: list[MaskedResult], dtype, granularity, threshold, op="mean", fill=0.0):
    """All ranks' results against the oracle, to the last bit."""
    world = len(results)
    ranks = [inputs(rank, dtype, granularity) for rank in range(world)]
    for i in range(len(SHAPES)):
        values = [each[0][i] for each in ranks]
        keep = [entries_of(each[1][i], values[0], threshold) for each in ranks]
        wanted, counts = expected(values, keep, op, fill)
        exact = in_float64(values, keep, op, fill)
        for rank, result in enumerate(results):
            assert same_bits(result.values[i], wanted), (rank, i)
            if values[0].dtype.is_floating_point:
                tolerance = 4 * world * torch.finfo(values[0].dtype).eps
                assert torch.allclose(result.values[i].double(), exact, tolerance, tolerance)
            if result.counts is not None and values[0].numel():
                found = result.counts[i]
                assert found.dtype == torch.int32
                found = found.reshape(tuple(found.shape) + (1,) * (counts.dim() - found.dim()))
                assert torch.equal(found.expand(counts.shape), counts), (rank, i)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_every_op_and_dtype(world, granularity):
    cases = list(product(FLOATING, ["sum", "mean", "mean_world"], [0.0, 0.5, -3.0]))
    # A third of the cases for each world, all of them in the end.
    cases = cases[world % 3 :: 3]

    def main(comm: Communicator) -> list[MaskedResult]:
        return [
            reduce_all(comm, dtype, granularity, 0.6, op=op, fill=fill, counts=fill == 0.5)
            for dtype, op, fill in cases
        ]

    results = run_threads(world, main, transport="loopback")
    for case, (dtype, op, fill) in enumerate(cases):
        check([each[case] for each in results], dtype, granularity, 0.6, op, fill)
        wants_counts = granularity != "element" or fill == 0.5
        assert (results[0][case].counts is not None) == wants_counts


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", INTEGER)
def test_integers_are_summed(granularity, dtype):
    results = run_threads(
        3,
        lambda comm: reduce_all(comm, dtype, granularity, 0.5, op="sum", fill=7),
        transport="loopback",
    )
    check(results, dtype, granularity, 0.5, "sum", 7)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_same_bits_for_every_bucket_size(transport, granularity):
    """From the smallest bucket, which cuts rows and tensors, to one that holds everything."""
    sizes = [1, 5000, 1 << 20, "auto"]

    def main(comm: Communicator) -> list[MaskedResult]:
        return [
            reduce_all(comm, "bfloat16", granularity, 0.4, counts=True, bucket_bytes=size)
            for size in sizes
        ]

    results = run_threads(3, main, transport=transport)
    for case in range(len(sizes)):
        check([each[case] for each in results], "bfloat16", granularity, 0.4)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("threshold", [0.02, 0.5, 0.98, -1.0, 1.0, math.inf, -math.inf])
def test_every_density(granularity, threshold):
    """Dense and compact packets, and entries that nobody contributes to."""

    def main(comm: Communicator) -> MaskedResult:
        return reduce_all(comm, "float32", granularity, threshold, fill=-1.5)

    results = run_threads(3, main, transport="loopback")
    check(results, "float32", granularity, threshold, fill=-1.5)


def on_processes(comm: Communicator) -> list:
    results = [
        reduce_all(comm, dtype, granularity, 0.5, bucket_bytes=20_000)
        for dtype, granularity in product(["float32", "bfloat16"], GRANULARITIES)
    ]
    # Numbers come back as the same bits; tensors would need this process.
    return [[each.flatten().tolist() for each in result.values] for result in results]


@pytest.mark.parametrize("transport", ["shm", "cma"])
def test_between_processes(transport):
    results = run_ranks(3, on_processes, transport=transport)
    for case, (dtype, granularity) in enumerate(product(["float32", "bfloat16"], GRANULARITIES)):
        values = [
            [torch.tensor(v, dtype=getattr(torch, dtype)).reshape(shape) for v, shape in pairs]
            for pairs in (zip(each[case], SHAPES, strict=True) for each in results)
        ]
        check([MaskedResult(each, None, 0, 0, 0) for each in values], dtype, granularity, 0.5)


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_everything_kept_is_the_plain_fold(granularity, op):
    """With NaN, inf, -0 and denormals among the values, in every floating type."""
    odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-40, 3.0, -2.5])

    def main(comm: Communicator):
        base = torch.cat([odd, odd.flip(0), torch.full((600,), -0.0)])
        values = [base.roll(comm.rank).to(getattr(torch, dtype)) for dtype in FLOATING]
        scores = [score(each, granularity, comm.rank) for each in values]
        result = masked_all_reduce(values, scores, -1.0, op=op, granularity=granularity, comm=comm)
        return values, result.values

    ranks = run_threads(4, main, transport="loopback")
    for i in range(len(FLOATING)):
        wanted = torch.empty_like(ranks[0][0][i])
        _core.fold("sum", [each[0][i] for each in ranks], wanted, 4 if op == "mean" else 1)
        for _, found in ranks:
            assert same_bits(found[i], wanted)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_tensors_of_any_strides(granularity):
    """Values, scores and out may be views; what they are views of stays as it is."""

    def main(comm: Communicator):
        base = made((50, 44), "float32", comm.rank)
        values = base.t()[1::3, ::2]
        wide = torch.rand((90, 90), generator=torch.Generator().manual_seed(comm.rank + 9))
        scores = {
            "element": wide[: values.shape[0], : 2 * values.shape[1] : 2],
            "row": wide[: 3 * values.shape[0] : 3, 1][: values.shape[0]],
            "tensor": wide[0, 0],
        }[granularity]
        room = torch.full((values.shape[1], 2 * values.shape[0]), 9.0)
        out = room.t()[::2]
        before = base.clone()
        result = masked_all_reduce(values, scores, 0.5, granularity=granularity, out=out, comm=comm)
        assert result.values is out
        assert torch.equal(base, before)
        assert bool((room.t()[1::2] == 9.0).all())
        return values.clone(), scores.clone(), out.clone()

    ranks = run_threads(3, main, transport="loopback")
    values = [each[0] for each in ranks]
    keep = [entries_of(each[1], values[0], 0.5) for each in ranks]
    wanted, _ = expected(values, keep, "mean")
    assert all(same_bits(each[2], wanted) for each in ranks)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("strided", [False, True])
def test_out_may_be_values(granularity, strided):
    def main(comm: Communicator):
        values = made((300, 40), "float32", comm.rank)
        values = values.t()[::2] if strided else values
        given = values.clone()
        scores = score(values, granularity, comm.rank + 5)
        masked_all_reduce(
            values, scores, 0.5, granularity=granularity, out=values, comm=comm, bucket_bytes=9000
        )
        return given, scores, values

    ranks = run_threads(3, main, transport="loopback")
    keep = [entries_of(each[1], each[0], 0.5) for each in ranks]
    wanted, _ = expected([each[0] for each in ranks], keep, "mean")
    assert all(same_bits(each[2], wanted) for each in ranks)


def test_nan_behind_the_mask_is_harmless():
    def main(comm: Communicator):
        values = torch.full((200, 8), float(comm.rank + 1))
        scores = torch.ones(200)
        if comm.rank == 1:
            values[50:150] = math.nan
            scores[50:150] = -math.inf
        rows = masked_all_reduce(values, scores, 0.5, comm=comm)
        elements = masked_all_reduce(
            values, scores[:, None].expand(200, 8), 0.5, granularity="element", comm=comm
        )
        return rows.values, elements.values

    wanted = torch.full((200, 8), 2.0)  # (1 + 2 + 3) / 3
    wanted[50:150] = 2.0  # (1 + 3) / 2
    for rows, elements in run_threads(3, main, transport="loopback"):
        assert torch.equal(rows, wanted)
        assert torch.equal(elements, wanted)


@pytest.mark.parametrize(
    ("dtype", "threshold", "kept"),
    [
        ("float32", 0.1, [False, True, True]),  # float32(0.1) is above 0.1
        ("float32", 0.3, [True, True, True]),
        ("float32", 1e300, [False, False, False]),
        ("float64", 0.1, [True, True, True]),
        ("bfloat16", 0.30078125, [True, True, True]),
        ("bfloat16", 0.3007812500001, [False, False, False]),
    ],
)
def test_scores_are_compared_exactly(dtype, threshold, kept):
    """In the number that the score is, not in one that the threshold was rounded to."""
    base = {"float32": 0.1, "float64": 0.1, "bfloat16": 0.3}[dtype]
    if (dtype, threshold) == ("float32", 0.3):
        base = 0.3
    scores = torch.full((3,), base, dtype=getattr(torch, dtype))
    wanted = [bool(float(each) >= threshold) for each in scores]
    comm_result = run_threads(
        1,
        lambda comm: masked_all_reduce(torch.ones(3), scores, threshold, comm=comm).counts,
        transport="loopback",
    )[0]
    assert comm_result.bool().tolist() == wanted


def test_scores_may_be_bool():
    def main(comm: Communicator):
        keep = torch.arange(300) % 3 != comm.rank
        return masked_all_reduce(torch.ones(300), keep, 1.0, op="sum", comm=comm).values

    assert torch.equal(run_threads(3, main, transport="loopback")[0], torch.full((300,), 2.0))


def test_a_score_per_tensor_may_be_a_number():
    def main(comm: Communicator):
        values = [torch.full((5,), float(comm.rank)), torch.full((2, 2), 1.0)]
        one = masked_all_reduce(
            values, [comm.rank, 0.5], 1, op="sum", granularity="tensor", comm=comm
        )
        single = masked_all_reduce(values[0], 2.0, 1, granularity="tensor", comm=comm)
        return one.values, [int(each) for each in one.counts], one.kept, int(single.counts)

    ranks = run_threads(3, main, transport="loopback")
    for rank, (values, counts, kept, count) in enumerate(ranks):
        assert torch.equal(values[0], torch.full((5,), 3.0))
        assert torch.equal(values[1], torch.zeros(2, 2))
        assert (counts, kept, count) == ([2, 0], int(rank >= 1), 3)


def test_nothing_at_all():
    def main(comm: Communicator):
        none = masked_all_reduce([], [], 0.5, comm=comm)
        empty = masked_all_reduce(torch.empty(0, 3), torch.empty(0), 0.5, comm=comm)
        return none, empty

    for none, empty in run_threads(3, main, transport="loopback"):
        assert (none.values, none.counts, none.kept, none.wire_bytes) == ([], [], 0, 0)
        assert empty.values.shape == (0, 3)
        assert empty.counts.shape == (0,)


@settings(max_examples=40)
@given(
    world=st.integers(1, 4),
    shapes=st.lists(st.lists(st.integers(0, 40), max_size=3), max_size=4),
    granularity=st.sampled_from(GRANULARITIES),
    dtype=st.sampled_from(FLOATING),
    op=st.sampled_from(["sum", "mean", "mean_world"]),
    threshold=st.sampled_from([-1.0, 0.1, 0.5, 0.95, 2.0]),
    bucket=st.sampled_from([1, 3000, "auto"]),
    counts=st.booleans(),
)
def test_any_list_of_tensors(world, shapes, granularity, dtype, op, threshold, bucket, counts):
    shapes = [tuple(each) for each in shapes]

    def main(comm: Communicator):
        values, scores = inputs(comm.rank, dtype, granularity, shapes)
        return masked_all_reduce(
            values,
            scores,
            threshold,
            op=op,
            granularity=granularity,
            counts=counts,
            comm=comm,
            bucket_bytes=bucket,
        )

    results = run_threads(world, main, transport="loopback")
    ranks = [inputs(rank, dtype, granularity, shapes) for rank in range(world)]
    for i in range(len(shapes)):
        values = [each[0][i] for each in ranks]
        keep = [entries_of(each[1][i], values[0], threshold) for each in ranks]
        wanted, _ = expected(values, keep, op)
        assert all(same_bits(each.values[i], wanted) for each in results)


@pytest.mark.parametrize("isa", _core.usable_isas())
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_every_instruction_set_gives_the_same_bits(isa, granularity, monkeypatch):
    monkeypatch.setenv("HYBRIDENGINE_ISA", isa)
    _core.refresh_isa()
    try:
        for dtype in [*FLOATING, *INTEGER]:
            op = "mean" if dtype in FLOATING else "sum"
            results = run_threads(
                2,
                lambda comm, dtype=dtype, op=op: reduce_all(
                    comm, dtype, granularity, 0.5, op=op, counts=True
                ),
                transport="loopback",
            )
            check(results, dtype, granularity, 0.5, op)
    finally:
        monkeypatch.undo()
        _core.refresh_isa()


def test_counts_are_made_once_and_travel_with_the_result():
    """Also those of tensors without elements, of rows and of single tensors."""

    def main(comm: Communicator) -> tuple:
        values = [torch.ones(3, 2), torch.ones(0, 4), torch.ones(2)]
        scores = [torch.arange(3.0), torch.ones(0), torch.ones(2)]
        several = masked_all_reduce(values, scores, 1.0, comm=comm)
        alone = masked_all_reduce(values[0], 1.0, 0.5, granularity="tensor", comm=comm)
        nothing = masked_all_reduce([], [], 0.5, comm=comm)
        assert several.counts is several.counts
        return pickle.loads(pickle.dumps((several, alone, nothing)))

    for several, alone, nothing in run_threads(2, main, transport="loopback"):
        assert [each.tolist() for each in several.counts] == [[0, 2, 2], [], [2, 2]]
        assert several.values[0].tolist() == [[0.0] * 2, [1.0] * 2, [1.0] * 2]
        assert (several.kept, several.route) == (4, "wire")
        assert alone.counts.shape == () and int(alone.counts) == 2
        assert (nothing.values, nothing.counts, nothing.kept) == ([], [], 0)
