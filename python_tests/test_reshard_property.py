"""Random models through random layouts on real ranks: every byte is what slicing says it is.

Weights are bytes in numpy arrays; a local tensor lies in one at an offset with strides of no
pattern, and what it does not cover must not change.
"""

import math
import random
import threading
import weakref
from dataclasses import dataclass

import blobs
import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layouts import BYTES, layouts_by_hand, pairs, rules, specs
from ranks import RankFailed, outcomes_of, thread_outcomes

import hybridengine.tensors as memory
from hybridengine import Communicator, Layout, Resharder, Spec, reshard

pytestmark = pytest.mark.threads

WORLD = 4
POISON = 0xA5
BUCKET_BYTES = [16, 1 << 10, 1000, 7 << 10, 1 << 20, 32 << 20]

Values = dict[str, np.ndarray]  # by tensor: the bytes of each element along a last dim


@dataclass(frozen=True)
class Strided:
    """A tensor that lies in `base` in its own way, with the indices of its elements there."""

    base: np.ndarray
    where: np.ndarray
    tensor: torch.Tensor


def strided(rng: random.Random, shape: tuple[int, ...], dtype: str) -> Strided:
    """Memory for a local tensor: contiguous, in another order of dims, with gaps, at an offset."""
    order = list(range(len(shape)))
    plain = rng.random() < 0.4
    if not plain:
        rng.shuffle(order)
    strides, elems = [0] * len(shape), 1
    for dim in reversed(order):
        step = 1 if plain else rng.choice([1, 1, 1, 2, 3])
        strides[dim] = elems * step
        elems *= max(1, shape[dim]) * step
    offset = 0 if plain else rng.randrange(5)
    base = np.full((elems + offset + 3, BYTES[dtype]), POISON, dtype=np.uint8)
    whole = torch.from_numpy(base.reshape(-1)).view(getattr(torch, dtype))
    where = oracle.grid((0,) * len(shape), shape, strides, offset)
    return Strided(base, where, whole.as_strided(shape, strides, offset))


def random_values(rng: random.Random, spec: Spec, dtypes: dict[str, str]) -> Values:
    """Bytes of no pattern; where a tensor is converted, numbers that every float type has room for,
    down to its smallest."""
    values = {}
    for name, shape, dtype in spec.tensors:
        generator = torch.Generator().manual_seed(rng.randrange(2**31))
        if dtypes[name] != dtype:
            scale = 2.0 ** torch.randint(-14, 7, shape, generator=generator)
            numbers = torch.randn(shape, generator=generator).clamp(-3, 3) * scale
            values[name] = as_bytes(numbers.to(getattr(torch, dtype)))
            continue
        size = (*shape, BYTES[dtype])
        top = 2 if dtype == "bool" else 256
        values[name] = np.random.default_rng(rng.randrange(2**31)).integers(0, top, size, np.uint8)
    return values


def as_bytes(tensor: torch.Tensor) -> np.ndarray:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat.reshape(*tensor.shape, tensor.element_size())


def converted(values: Values, src: Spec, dst: Spec) -> Values:
    result = {}
    for (name, shape, old), (_, _, new) in zip(src.tensors, dst.tensors, strict=True):
        numbers = torch.from_numpy(values[name].reshape(-1)).view(getattr(torch, old))
        result[name] = as_bytes(numbers.to(getattr(torch, new)).reshape(shape))
    return result


class Side:
    """A layout with what each local tensor must hold."""

    def __init__(self, layout: Layout, values: Values) -> None:
        self.layout, self.values = layout, values

    def contents(self, rank: int, background: int) -> Values:
        """The bytes of this rank's local tensors, with `background` where no piece lies."""
        local = {
            name: np.full((math.prod(shape), BYTES[dtype]), background, dtype=np.uint8)
            for name, shape, dtype in self.layout.locals(rank)
        }
        for tensor, name, start, size, offset, strides in self.layout.pieces(rank):
            box = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
            where = oracle.grid((0,) * len(size), size, strides, offset)
            local[name][where] = self.values[tensor][box]
        shapes = {name: (*shape, -1) for name, shape, _ in self.layout.locals(rank)}
        return {
            name: each.reshape(*shapes[name][:-1], each.shape[-1]) for name, each in local.items()
        }

    def place(self, rank: int, rng: random.Random) -> dict[str, Strided]:
        """Memory of no pattern for this rank's local tensors."""
        return {name: strided(rng, shape, dtype) for name, shape, dtype in self.layout.locals(rank)}

    def stored(self, rank: int, rng: random.Random) -> dict[str, torch.Tensor] | None:
        """This rank's tensors, somewhere in memory; None where it is not in the layout."""
        if rank not in self.layout.ranks:
            return None
        placed, contents = self.place(rank, rng), self.contents(rank, POISON)
        for name, each in placed.items():
            each.base[each.where] = contents[name]
        return {name: each.tensor for name, each in placed.items()}

    def check(self, rank: int, got: dict[str, torch.Tensor]) -> None:
        expected = self.contents(rank, 0)
        assert list(got) == list(expected)
        for name, each in expected.items():
            assert tuple(got[name].shape) == each.shape[:-1]
            np.testing.assert_array_equal(as_bytes(got[name]), each, err_msg=f"{rank}: {name}")


@dataclass(frozen=True)
class Case:
    src: Side
    dst: Side
    seed: int

    @staticmethod
    def of(pair: tuple[Layout, Layout], seed: int) -> "Case":
        src, dst = pair
        dtypes = {name: dtype for name, _, dtype in dst.spec.tensors}
        values = random_values(random.Random(seed), src.spec, dtypes)
        return Case(Side(src, values), Side(dst, converted(values, src.spec, dst.spec)), seed)

    def resharder(self, comm: Communicator, **options) -> Resharder:
        rng = random.Random(self.seed + comm.rank)
        model = self.src.stored(comm.rank, rng)
        return Resharder(model, self.src.layout, self.dst.layout, comm=comm, **options)

    def run(self, comm: Communicator) -> None:
        """Every way to move the weights, on one rank."""
        rng = random.Random(self.seed)  # the same on every rank
        for bucket_bytes in rng.sample(BUCKET_BYTES, 3):
            verify = rng.random() < 0.5
            resharder = self.resharder(comm, bucket_bytes=bucket_bytes, verify=verify)
            self.dst.check(comm.rank, resharder.run())
            self.check_received(comm.rank, resharder)
            self.stream(comm, resharder)
        self.dst.check(comm.rank, self.resharder(comm, alias=True).run())
        self.run_into(comm, rng.choice(BUCKET_BYTES))

    def check_received(self, rank: int, resharder: Resharder) -> None:
        """The moves and nothing else, be there gaps that align elements of other types."""
        moves = [
            move for move in resharder.plan.moves_of(rank) if move["dst"] == rank != move["src"]
        ]
        assert resharder.report.received_bytes == sum(move["num_bytes"] for move in moves)
        assert resharder.report.received_over_bound == 1

    def run_into(self, comm: Communicator, bucket_bytes: int) -> None:
        """out=: what no piece covers keeps its poison, in the tensor and around it."""
        placed = self.dst.place(comm.rank, random.Random(self.seed - comm.rank))
        expected = {name: each.base.copy() for name, each in placed.items()}
        for name, contents in self.dst.contents(comm.rank, POISON).items():
            expected[name][placed[name].where] = contents
        out = {name: each.tensor for name, each in placed.items()}
        model = self.src.stored(comm.rank, random.Random(self.seed))
        layouts = self.src.layout, self.dst.layout
        got = reshard(model, *layouts, comm=comm, out=out, bucket_bytes=bucket_bytes)
        for name, each in placed.items():
            assert got[name].data_ptr() == each.tensor.data_ptr()
            np.testing.assert_array_equal(each.base, expected[name], err_msg=name)

    def stream(self, comm: Communicator, resharder: Resharder) -> None:
        seen: dict[str, torch.Tensor] = {}

        def take(name: str, tensor: torch.Tensor) -> None:
            assert name not in seen
            seen[name] = tensor

        resharder.stream(take)
        self.dst.check(comm.rank, seen)  # which also compares the order


@st.composite
def cases(draw, **options):
    return Case.of(draw(pairs(WORLD, **options)), draw(st.integers(0, 2**31)))


def run_case(comm: Communicator, case: Case) -> None:
    case.run(comm)


def checked(outcomes: list) -> list:
    """What the ranks returned. Throws with the words of the rank that failed by itself, not of one
    that only saw another fail."""
    failed = [outcome for outcome in outcomes if outcome[0] != "ok"]
    failed.sort(key=lambda outcome: outcome[1:2] == ("TransportError",))
    if failed:
        raise RankFailed(str(failed[0][-1]))
    return [outcome[1] for outcome in outcomes]


@pytest.mark.parametrize("transport", ["loopback", "shm"])
@settings(max_examples=25)
@given(case=cases())
def test_small_tensors_of_every_kind(transport, case):
    checked(thread_outcomes(WORLD, run_case, case, transport=transport))


@pytest.mark.parametrize("transport", ["loopback", "shm"])
@settings(max_examples=6)
@given(case=cases(max_tensors=3, max_elems=20_000, max_size=200))
def test_tensors_of_many_buckets(transport, case):
    checked(thread_outcomes(WORLD, run_case, case, transport=transport))


def test_ranks_that_are_processes():
    """As above, with memory that another process cannot see."""
    spec = Spec.from_tensors(
        [
            ("a", (37, 53), "float32"),
            ("b", (), "int64"),
            ("c", (5, 0, 3), "int8"),
            ("d", (9,), "bool"),
        ]
    )
    src = Layout.fsdp2(3, ranks=[0, 1, 3]).bind(spec)
    dst = Layout.replicated(2, ranks=[2, 3]).bind(spec.with_dtype("bfloat16"))
    checked(outcomes_of(WORLD, run_saved, src.save(), dst.save(), 12345))


def run_saved(comm: Communicator, src: bytes, dst: bytes, seed: int) -> None:
    Case.of((Layout.load(src), Layout.load(dst)), seed).run(comm)


@st.composite
def streams(draw):
    spec = draw(specs(max_tensors=12, max_elems=3000, max_size=60, dtypes=["float32", "int8"]))
    src = draw(rules(WORLD)).bind(spec)
    dst = draw(
        st.one_of(rules(WORLD).map(lambda rule: rule.bind(spec)), layouts_by_hand(spec, WORLD))
    )
    return Case.of((src, dst), draw(st.integers(0, 2**31)))


@settings(max_examples=20)
@given(case=streams(), bucket_bytes=st.sampled_from([64, 1 << 10, 10_000, 32 << 20]))
def test_what_a_stream_holds_is_bounded(case, bucket_bytes):
    """What is being filled stays within one bucket beside the largest tensor; two are left for
    staging."""
    allocate, open_tensors = memory.allocate, threading.local()
    layout = case.dst.layout
    rows = [row for rank in layout.ranks for row in layout.locals(rank)]
    largest = max((math.prod(shape) * BYTES[dtype] for _, shape, dtype in rows), default=0)

    def watch(*args, **options) -> torch.Tensor:
        tensor = allocate(*args, **options)
        if not hasattr(open_tensors, "mine"):
            open_tensors.mine, open_tensors.most = weakref.WeakSet(), 0
        open_tensors.mine.add(tensor)
        open_tensors.most = max(open_tensors.most, sum(t.nbytes for t in open_tensors.mine))
        return tensor

    def main(comm: Communicator) -> int:
        handed = []
        resharder = case.resharder(comm, bucket_bytes=bucket_bytes)
        resharder.stream(lambda name, tensor: handed.append(name))
        assert handed == [name for name, _, _ in case.dst.layout.locals(comm.rank)]
        return getattr(open_tensors, "most", 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "allocate", watch)
        for most in checked(thread_outcomes(WORLD, main, transport="loopback")):
            assert most <= largest + max(bucket_bytes, 64)


def test_the_bytes_of_a_local_tensor_are_those_of_the_saved_layout():
    """The two ways in which tests read a layout agree."""
    spec = Spec.from_tensors([("w", (5, 3), "int8")])
    values = {"w": np.arange(15, dtype=np.uint8).reshape(5, 3, 1)}
    layout = Layout.fsdp2(2).bind(spec)
    read = oracle.Memory(blobs.read_layout(layout.save()), {"w": 0}).fill()
    for rank in range(2):
        contents = Side(layout, values).contents(rank, 0)["w"]
        np.testing.assert_array_equal(contents.reshape(-1), read.values[rank])
