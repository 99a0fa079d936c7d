"""Collectives against float64, on every transport; disagreement, asynchronous calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import MEDIA, run_ranks, run_threads

import hybridengine as he
from hybridengine import Communicator, UsageError

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8"]
WORLDS = [1, 2, 3, 4, 5, 8]
TRANSPORTS = MEDIA
# Through a lane, and past it: several buckets at 4 KiB, with an empty tensor and an odd one.
SIZES = {"small": [3, 0, 1000], "large": [70_000, 0, 7, 4099]}


def start(world: int, function: Any, *args: Any, transport: str, **limits: float) -> list[Any]:
    if not MEDIA[transport]:
        return run_threads(world, function, *args, transport=transport)
    return run_ranks(world, function, *args, transport=transport, **limits)


def values(rank: int, size: int, dtype: str) -> torch.Tensor:
    """Whole numbers so small that any sum of eight is exact in any type."""
    numbers = (torch.arange(size) * 7 + rank * 3) % 11
    return numbers.to(getattr(torch, dtype))


def combined(world: int, size: int, dtype: str, op: str) -> torch.Tensor:
    stacked = torch.stack([values(rank, size, dtype).double() for rank in range(world)])
    if op in ("min", "max") and size == 0:
        op = "sum"
    result = {
        "sum": lambda: stacked.sum(0),
        "mean": lambda: stacked.mean(0),
        "min": lambda: stacked.amin(0),
        "max": lambda: stacked.amax(0),
    }[op]()
    return result.to(getattr(torch, dtype))


def reduce_everything(comm: Communicator, kind: str, dtypes: list[str]) -> int:
    checked = 0
    for dtype in dtypes:
        floating = getattr(torch, dtype).is_floating_point
        for op in ("sum", "min", "max", *(["mean"] if floating else [])):
            tensors = [values(comm.rank, size, dtype) for size in SIZES[kind]]
            he.all_reduce(tensors, op, comm=comm, bucket_bytes=4096)
            for tensor, size in zip(tensors, SIZES[kind], strict=True):
                assert torch.equal(tensor, combined(comm.world, size, dtype, op)), (dtype, op, size)
                checked += 1
    return checked


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("world", WORLDS)
def test_all_reduce_of_every_op_and_type(world, kind):
    checked = run_threads(world, reduce_everything, kind, DTYPES, transport="loopback")
    assert checked == [(4 * 4 + 5 * 3) * len(SIZES[kind])] * world


@pytest.mark.parametrize("transport", ["shm", "cma"])
@pytest.mark.parametrize("world", [2, 5])
def test_all_reduce_between_processes(world, transport):
    for kind in SIZES:
        run_ranks(
            world, reduce_everything, kind, ["float32", "bfloat16", "int32"], transport=transport
        )


def cut_and_gather(comm: Communicator, rows: int, dtype: str) -> None:
    world, rank = comm.world, comm.rank
    shape = (world * rows, 3)
    whole = [values(each, shape[0] * 3, dtype).view(shape) for each in range(world)]
    expected = combined(world, shape[0] * 3, dtype, "sum").view(shape)
    chunk = torch.full((rows, 3), -1).to(whole[0].dtype)
    he.reduce_scatter([chunk], [whole[rank]], comm=comm, bucket_bytes=4096)
    assert torch.equal(chunk, expected[rank * rows : (rank + 1) * rows])
    taken = whole[rank].clone()
    he.reduce_scatter(taken[rank * rows : (rank + 1) * rows], taken, comm=comm, bucket_bytes=4096)
    assert torch.equal(taken[rank * rows : (rank + 1) * rows], chunk)
    gathered = torch.zeros_like(expected)
    he.all_gather(gathered, chunk, comm=comm, bucket_bytes=4096)
    assert torch.equal(gathered, expected)
    inside = torch.zeros_like(expected)
    mine = inside[rank * rows : (rank + 1) * rows]
    mine.copy_(chunk)
    he.all_gather(inside, mine, comm=comm, bucket_bytes=4096)
    assert torch.equal(inside, expected)
    for src in range(world):
        received = values(rank, shape[0] * 3, dtype)
        he.broadcast([received], src, comm=comm, bucket_bytes=4096)
        assert torch.equal(received, values(src, shape[0] * 3, dtype))
    he.barrier(comm)


@pytest.mark.threads
@pytest.mark.parametrize("rows", [0, 1, 2000])
@pytest.mark.parametrize("world", WORLDS)
def test_the_other_collectives(world, rows):
    for dtype in ("float32", "bfloat16"):
        run_threads(world, cut_and_gather, rows, dtype, transport="loopback")


@pytest.mark.parametrize("transport", ["shm", "cma"])
def test_the_other_collectives_between_processes(transport):
    for rows in (1, 20_000):
        run_ranks(3, cut_and_gather, rows, "float32", transport=transport)


def odd_sums(comm: Communicator, size: int, dtype: str, bucket_bytes: int) -> list[float]:
    """Of numbers whose sum depends on the order in which they are added."""
    make = torch.Generator().manual_seed(comm.rank)
    tensor = (torch.randn(size, generator=make) * 10 ** (comm.rank - 1)).to(getattr(torch, dtype))
    he.all_reduce(tensor, "mean", comm=comm, bucket_bytes=bucket_bytes)
    return tensor.double().tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [1000, 50_001])
def test_the_same_bits_everywhere(size, dtype):
    """On every rank, by every transport, for every bucket size: those of the sum in rank order."""
    total = torch.zeros(size)
    for rank in range(4):
        make = torch.Generator().manual_seed(rank)
        each = (torch.randn(size, generator=make) * 10 ** (rank - 1)).to(getattr(torch, dtype))
        total = each.float() if rank == 0 else total + each.float()
    expected = (total / 4).to(getattr(torch, dtype)).double().tolist()
    for transport in TRANSPORTS:
        for bucket_bytes in (1 << 10, 100_000) if size > 1000 else (1 << 20,):
            for found in start(4, odd_sums, size, dtype, bucket_bytes, transport=transport):
                assert found == expected, (transport, bucket_bytes)


def strided(comm: Communicator, rows: int) -> None:
    """Slices, transposes and expanded sources; the memory around them stays."""
    for step in (1, 2):
        base = torch.full((rows, 9), 7.0)
        view = base[:, 1:8:step]
        view.copy_(values(comm.rank, view.numel(), "float32").view(view.shape))
        he.all_reduce(view.T, comm=comm)
        expected = combined(comm.world, view.numel(), "float32", "sum").view(view.shape)
        assert torch.equal(view, expected)
        assert (base[:, 0] == 7).all() and (base[:, 8] == 7).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_tensors_of_any_strides(transport):
    for rows in (5, 9000):
        start(3, strided, rows, transport=transport)


def disagree(comm: Communicator, size: int) -> list[str]:
    """What each wrong call says; buffers do not change, and the next call works."""
    said = []
    odd = comm.rank == comm.world - 1
    calls = {
        "count": lambda t: he.all_reduce([t] * (2 if odd else 1), comm=comm),
        "shape": lambda t: he.all_reduce(t[: len(t) - odd], comm=comm),
        "dtype": lambda t: he.all_reduce(t.int() if odd else t, comm=comm),
        "op": lambda t: he.all_reduce(t, "max" if odd else "sum", comm=comm),
        "kind": lambda t: he.broadcast(t, comm=comm) if odd else he.all_reduce(t, comm=comm),
        "barrier": lambda t: he.barrier(comm) if odd else he.all_reduce(t, comm=comm),
        "root": lambda t: he.broadcast(t, int(odd), comm=comm),
        "argument": lambda t: he.all_reduce("no tensor" if odd else t, comm=comm),
        "operation": lambda t: he.all_reduce(t, "avg" if odd else "sum", comm=comm),
        "rows": lambda t: he.reduce_scatter(t[:3], t, comm=comm),
        "type": lambda t: he.all_reduce(t, 5 if odd else "sum", comm=comm),
        "bucket": lambda t: he.all_reduce(t, comm=comm, bucket_bytes=-1 if odd else 4096),
        "nobody": lambda t: he.broadcast(t, comm.world, comm=comm),
    }
    for name, call in calls.items():
        tensor = torch.full((size,), float(comm.rank))
        with pytest.raises(UsageError) as caught:
            call(tensor)
        said.append(f"{name}: {caught.value}")
        assert (tensor == comm.rank).all()
        assert not comm.dead
        he.all_reduce(tensor, comm=comm)
        assert (tensor == sum(range(comm.world))).all()
    return said


@pytest.mark.threads
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_that_disagree_say_so_alike(transport):
    for size in (7, 70_001):
        told = start(3, disagree, size, transport=transport)
        assert told[0] == told[1] == told[2]
        by_name = dict(line.split(": ", 1) for line in told[0])
        assert f"rank 0: all_reduce sum of 1 tensor: float32 [{size}]; rank 2" in by_name["shape"]
        assert "int32" in by_name["dtype"] and "all_reduce max" in by_name["op"]
        assert "broadcast" in by_name["kind"] and "barrier" in by_name["barrier"]
        assert by_name["argument"].startswith("rank 2 cannot take part in a collective: ")
        assert "Use sum, mean, min or max" in by_name["operation"]
        assert "does not divide by 3" in by_name["rows"]
        assert "rank 2" in by_name["type"] and "wrong type" in by_name["type"]
        assert "bucket_bytes is -1" in by_name["bucket"]
        assert "src is rank 3 of 3" in by_name["nobody"]


def test_a_list_without_tensors():
    def main(comm: Communicator) -> None:
        he.all_reduce([], comm=comm)
        he.all_gather([], [], comm=comm)
        he.all_reduce(torch.ones(0, 5), "max", comm=comm)

    run_threads(3, main, transport="loopback")


def go_on_meanwhile(comm: Communicator) -> None:
    """Asynchronous calls run in order, and others wait for them."""
    tensors = [torch.full((40_000,), float(i + comm.rank)) for i in range(6)]
    works = [he.all_reduce(each, comm=comm, async_op=True) for each in tensors]
    last = torch.ones(3)
    he.all_reduce(last, comm=comm)
    assert all(work.is_completed() for work in works)
    future = he.all_reduce(torch.ones(2), "mean", comm=comm, async_op=True).get_future("result")
    assert future.wait() == "result"
    for i, tensor in enumerate(tensors):
        works[i].wait()
        assert (tensor == sum(i + rank for rank in range(comm.world))).all()
    wrong = he.all_reduce(torch.ones(2 + comm.rank), comm=comm, async_op=True)
    with pytest.raises(UsageError, match="ask for different"):
        wrong.wait()
    with pytest.raises(UsageError, match="ask for different"):
        he.all_reduce(torch.ones(2 + comm.rank), comm=comm, async_op=True).get_future().wait()


@pytest.mark.threads
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_goes_on_meanwhile(transport):
    start(2, go_on_meanwhile, transport=transport)


def model_and_data(rank: int) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    model = torch.nn.Sequential(torch.nn.Linear(9, 30), torch.nn.Tanh(), torch.nn.Linear(30, 2))
    make = torch.Generator().manual_seed(0)
    with torch.no_grad():  # ranks are threads: not from the generator of the process
        for each in model.parameters():
            each.copy_(torch.randn(each.shape, generator=make))
    make = torch.Generator().manual_seed(rank + 1)
    return model, [torch.randn(4, 9, generator=make) for _ in range(4)]


def reduce_gradients(comm: Communicator, sync_every: int) -> list[torch.Tensor]:
    model, batches = model_and_data(comm.rank)
    reducer = he.GradientReducer(
        model.parameters(), comm=comm, sync_every=sync_every, bucket_bytes=500
    )
    reduced = []
    for batch in batches:
        model(batch).square().mean().backward()
        reduced.append(reducer.finish())
        if reduced[-1] and sum(reduced) < len(batches) // sync_every:
            model.zero_grad()
    assert reduced == [(i + 1) % sync_every == 0 for i in range(4)]
    reducer.remove()
    return [each.grad for each in model.parameters()]


@pytest.mark.parametrize("sync_every", [1, 2, 4])
def test_gradients_are_those_of_all_ranks(sync_every):
    world = 3
    expected: list[torch.Tensor] = []
    for rank in range(world):
        model, batches = model_and_data(rank)
        for batch in batches[-sync_every:]:
            model(batch).square().mean().backward()
        mine = [each.grad / world for each in model.parameters()]
        expected = [a + b for a, b in zip(expected, mine, strict=True)] if expected else mine
    found = run_threads(world, reduce_gradients, sync_every, transport="loopback")
    for each in found:
        for got, first, wanted in zip(each, found[0], expected, strict=True):
            assert torch.equal(got, first)
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_a_nan_that_takes_part_stays(op):
    def main(comm: Communicator) -> None:
        for size in (3, 70_001):  # posted whole, and in buckets
            tensor = torch.full((size,), float(comm.rank))
            if comm.rank == 1:
                tensor[1] = torch.nan
            he.all_reduce(tensor, op, comm=comm)
            assert tensor.isnan().nonzero().flatten().tolist() == [1]
        values = torch.tensor([1.0, torch.nan if comm.rank == 1 else 1.0, 2.0])
        masked = he.masked_all_reduce(values, torch.ones(3), 0.5, comm=comm)
        assert masked.values.isnan().tolist() == [False, True, False]

    run_threads(3, main, transport="loopback")


def add_up(comm: Communicator, name: str, sync_every: int) -> tuple[list[float], str]:
    """A parameter of that type whose gradients are 512 in the first pass, then 1 each."""
    weight = torch.nn.Parameter(torch.zeros(3, dtype=getattr(torch, name)))
    late = torch.nn.Parameter(torch.zeros(2, dtype=weight.dtype))  # not in the last pass
    reducer = he.GradientReducer([weight, late], comm=comm, sync_every=sync_every)
    for i in range(sync_every):
        loss = (weight * (512 if i == 0 else 1)).sum()
        (loss if i == sync_every - 1 else loss + late.sum()).backward()
        ready = reducer.finish()
        assert ready == (i == sync_every - 1)
    assert late.grad.tolist() == [sync_every - 1] * 2
    found = weight.grad.tolist(), str(weight.grad.dtype)
    weight.grad = late.grad = None
    for _ in range(sync_every):  # and once more, from nothing
        weight.sum().backward()
        reducer.finish()
    assert weight.grad.tolist() == [sync_every] * 3 and late.grad.tolist() == [0, 0]
    return found


@pytest.mark.parametrize(
    ("name", "expected"), [("bfloat16", 516), ("float16", 515), ("float32", 515)]
)
def test_passes_add_up_in_float32_and_are_rounded_once(name, expected):
    """512 + 1 + 1 + 1 stays 512 in bfloat16; the sum, 515, lies nearest to 516."""
    for values, dtype in run_threads(2, add_up, name, 4, transport="loopback"):
        assert values == [expected] * 3 and dtype == f"torch.{name}"


def train_with_ddp(comm: Communicator, path: str) -> list[list[float]]:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group(
        "gloo", init_method=f"file://{path}", rank=comm.rank, world_size=comm.world
    )
    model, batches = model_and_data(comm.rank)
    plain = DistributedDataParallel(model)
    plain(batches[0]).square().mean().backward()
    expected = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    hooked = DistributedDataParallel(model, bucket_cap_mb=1e-3)
    hooked.register_comm_hook(comm, he.ddp_hook)
    hooked(batches[0]).square().mean().backward()
    for each, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(each.grad, wanted)
    dist.destroy_process_group()
    return [each.grad.tolist() for each in model.parameters()]


def test_the_hook_of_distributed_data_parallel(tmp_path):
    found = run_ranks(2, train_with_ddp, str(tmp_path / "store"), transport="shm")
    assert found[0] == found[1]


@pytest.mark.parametrize("call", [he.all_reduce, he.broadcast])
def test_a_sign_that_is_kept_beside_the_memory_is_refused(call):
    def main(comm: Communicator) -> None:
        lazy = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
        with pytest.raises(UsageError, match=r"is_neg\(\).*Pass resolve_neg\(\)"):
            call(lazy, comm=comm)
        assert not comm.dead
        call(lazy.resolve_neg(), comm=comm)

    run_threads(2, main, transport="loopback")
