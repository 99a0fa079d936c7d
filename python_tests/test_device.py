"""Strided copies and digests on the host (csrc/device), with torch and numpy as oracles."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridengine import _core

FLOATING = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
OTHERS = ["int64", "int32", "int16", "int8", "uint8", "bool"]
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@pytest.fixture(scope="module", autouse=True, params=_core.usable_isas())
def isa_of_the_loops(request):
    """Every test runs with the loops of every instruction set that this CPU has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRIDENGINE_ISA", request.param)
        _core.refresh_isa()
        assert _core.isa() == request.param
        yield
    _core.refresh_isa()


def torch_dtype(name):
    return getattr(torch, name)


def words(tensor):
    """The elements as unsigned words, contiguous."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat.view(WORDS[tensor.element_size()]).reshape(tuple(tensor.shape))


def from_words(array, name):
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return torch.from_numpy(flat).view(torch_dtype(name)).reshape(array.shape)


def expected_of(values, name):
    """What a copy to dtype `name` gives. Releases of torch differ in what becomes of numbers past
    the range of float8_e4m3fn; the present one, and this engine, take the largest."""
    if str(values.dtype) == f"torch.{name}":
        return values.clone()
    if name == "float8_e4m3fn":
        values = values.float().clamp(-448, 448)
    return values.to(torch_dtype(name))


def assert_same(got, expected):
    """Bitwise, except that one NaN is as good as another."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    equal = words(got) == words(expected)
    if got.dtype.is_floating_point:
        equal |= (got.float().isnan() & expected.float().isnan()).numpy()
    assert equal.all(), (got[~torch.from_numpy(equal)], expected[~torch.from_numpy(equal)])


def copied(values, name):
    result = torch.zeros(values.shape, dtype=torch_dtype(name))
    _core.copy_strided(values, result)
    return result


# Conversions of single elements


def all_words(name):
    """Every value of a narrow type; random bits and the neighbourhoods of every narrow value and of
    every middle between two for the wide ones."""
    size = torch_dtype(name).itemsize
    if size <= 2:
        return from_words(np.arange(1 << (8 * size)).astype(WORDS[size]), name)
    rng = np.random.default_rng(7)
    random = from_words(rng.integers(0, 1 << (8 * size), 200_001, dtype=WORDS[size]), name)
    return torch.cat([random, *(edges(narrow, name) for narrow in FLOATING[2:])])


def edges(narrow, name):
    values = all_words(narrow).double()
    values = values[values.isfinite()].unique()
    past = values[-1:] * 2  # where the range ends
    values = torch.cat([-past, values, past])
    middles = (values[1:] + values[:-1]) / 2
    points = torch.cat([values, middles, torch.tensor([0.0, -0.0])]).to(torch_dtype(name))
    infinity = torch.tensor([float("inf")], dtype=points.dtype)
    ends = [points, torch.nextafter(points, infinity), torch.nextafter(points, -infinity)]
    if name == "float64":
        # Near a middle by less than a float32 can say: torch rounds twice, and so do we.
        ends += [points * (1 + 2.0**-40), points * (1 - 2.0**-40), points * (1 + 2.0**-24)]
    return torch.cat([*ends, infinity, -infinity, infinity - infinity])


@pytest.mark.parametrize("dst", FLOATING)
@pytest.mark.parametrize("src", FLOATING)
def test_every_conversion_equals_torch(src, dst):
    values = all_words(src)
    assert_same(copied(values, dst), expected_of(values, dst))
    # The loop for contiguous elements and the one for others are two.
    spread = torch.zeros((values.numel(), 2), dtype=values.dtype)
    spread[:, 1] = values
    assert_same(copied(spread[:, 1], dst), expected_of(values, dst))


def test_float64_is_rounded_through_float32():
    value = torch.tensor([1 + 2.0**-8 + 2.0**-40], dtype=torch.float64)
    assert copied(value, "bfloat16").item() == 1.0 == value.to(torch.bfloat16).item()


def test_float8_e4m3fn_takes_the_largest_as_torch_does():
    values = torch.tensor([448, 464, 464.1, 480, 1e9, float("inf"), -1e9, -float("inf")])
    assert copied(values, "float8_e4m3fn").float().tolist() == [448] * 6 + [-448] * 2
    theirs = values.to(torch.float8_e4m3fn)
    if not theirs.float().isnan().any():  # releases before 2.13 gave NaN
        assert_same(copied(values, "float8_e4m3fn"), theirs)


@pytest.mark.parametrize(("src", "dst"), [*itertools.product(OTHERS, FLOATING[:2])])
def test_only_floating_types_convert(src, dst):
    for a, b in ((src, dst), (dst, src), (src, "int16" if src != "int16" else "int32")):
        for count in (0, 3):
            dst_tensor = torch.ones(count, dtype=torch_dtype(b))
            with pytest.raises(_core.UsageError, match=f"cannot convert {a} to {b}. Only floating"):
                _core.copy_strided(torch.zeros(count, dtype=torch_dtype(a)), dst_tensor)
            assert (dst_tensor == 1).all()


# Shapes, strides and addresses


class Guarded:
    """A destination of random place: any address, dense or spaced, between poisoned bytes."""

    def __init__(self, shape, order, gaps, lead_bytes, name):
        dtype = torch_dtype(name)
        self.size = dtype.itemsize
        strides = [0] * len(shape)
        step = 1
        for dim in reversed(order):
            step *= gaps[dim]
            strides[dim] = step
            step *= max(shape[dim], 1)
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n > 0)
        self.bytes = np.full(lead_bytes + extent * self.size + 64, 0xA5, np.uint8)
        self.words = np.ndarray(
            shape, WORDS[self.size], self.bytes, lead_bytes, [s * self.size for s in strides]
        )
        flat = torch.frombuffer(self.bytes, dtype=dtype, offset=lead_bytes, count=extent)
        self.tensor = flat.as_strided(shape, strides)

    def check(self, expected):
        assert_same(from_words(self.words, str(expected.dtype)[6:]), expected)
        self.words[...] = int.from_bytes(b"\xa5" * self.size, "little")
        assert (self.bytes == 0xA5).all(), "bytes outside of the destination changed"


@st.composite
def copies(draw, max_size=6):
    """A source tensor of random bits and shape, strides and address, and a Guarded destination."""
    ndim = draw(st.integers(0, 5))
    shape = draw(st.lists(st.integers(0, max_size), min_size=ndim, max_size=ndim))
    if ndim and draw(st.booleans()):
        shape[draw(st.integers(0, ndim - 1))] = draw(st.sampled_from([1, 7, 33, 70]))
    if draw(st.booleans()):
        src, dst = draw(st.sampled_from(FLOATING)), draw(st.sampled_from(FLOATING))
    else:
        src = dst = draw(st.sampled_from(FLOATING + OTHERS[:-1]))
    order = draw(st.permutations(range(ndim)))
    steps = [draw(st.sampled_from([1, 1, 1, 2, 3])) for _ in shape]
    expanded = [draw(st.integers(0, 5)) == 0 for _ in shape]
    size = torch_dtype(src).itemsize
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    whole = [1 if e else n * s for n, s, e in zip(shape, steps, expanded, strict=True)]
    stored = [whole[dim] for dim in order]
    lead = draw(st.integers(0, 17))
    raw = rng.integers(0, 256, lead + int(np.prod(stored)) * size + 8, dtype=np.uint8)
    count = int(np.prod(stored))
    flat = torch.frombuffer(raw, dtype=torch_dtype(src), offset=lead, count=max(count, 1))[:count]
    tensor = flat.reshape(stored).permute([order.index(dim) for dim in range(ndim)])
    for dim, step in enumerate(steps):
        if not expanded[dim]:
            tensor = tensor.narrow(dim, 0, whole[dim])[
                (slice(None),) * dim + (slice(None, None, step),)
            ]
    tensor = tensor.expand(shape)
    dst_order = draw(st.permutations(range(ndim)))
    gaps = [draw(st.sampled_from([1, 1, 1, 2])) for _ in shape]
    return tensor, Guarded(shape, dst_order, gaps, draw(st.integers(0, 17)), dst), dst


def aligned(tensor):
    """A copy at an aligned address, made by numpy, which minds neither strides nor alignment."""
    size = tensor.element_size()
    address, shape, strides, _, _ = _core.describe_memory(tensor)
    if 0 in shape:
        return torch.empty(shape, dtype=tensor.dtype)
    view = np.lib.stride_tricks.as_strided
    extent = (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * size
    raw = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * extent).from_address(address))
    array = np.ndarray(1, WORDS[size], raw, 0)
    array = view(array, shape, [s * size for s in strides])
    return from_words(array.copy(), str(tensor.dtype)[6:])


@settings(max_examples=400, deadline=None)
@given(copies())
def test_copy_of_any_shape_and_place(case):
    src, guarded, name = case
    values = aligned(src)
    _core.copy_strided(src, guarded.tensor)
    guarded.check(expected_of(values, name))


@settings(max_examples=200, deadline=None)
@given(copies())
def test_digest_is_that_of_the_packed_bytes(case):
    src = case[0]
    assert _core.digest_strided(src) == _core.digest(words(aligned(src)).tobytes())


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 200])
def test_tails_of_contiguous_loops(count):
    for src, dst in itertools.product(FLOATING, FLOATING):
        size = torch_dtype(src).itemsize
        rng = np.random.default_rng(count)
        values = from_words(
            rng.integers(0, 256, count * size, dtype=np.uint8).view(WORDS[size]), src
        )
        guarded = Guarded([count], [0], [1], 3, dst)
        _core.copy_strided(values, guarded.tensor)
        guarded.check(expected_of(values, dst))


@pytest.mark.parametrize("row_bytes", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 65, 128, 300])
def test_rows_of_every_size(row_bytes):
    values = torch.arange(7 * 512, dtype=torch.int64).to(torch.uint8).reshape(7, 512)
    for first in (0, 1, 5):
        guarded = Guarded([7, row_bytes], [0, 1], [3, 1], first, "uint8")
        source = values[:, first : first + row_bytes]
        _core.copy_strided(source, guarded.tensor)
        guarded.check(source.clone())


@pytest.mark.parametrize("name", ["uint8", "bfloat16", "float32", "int64"])
@pytest.mark.parametrize("shape", [(1, 300), (16, 16), (17, 33), (100, 257), (513, 2)])
def test_transpositions(name, shape):
    size = torch_dtype(name).itemsize
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << (8 * size), shape, dtype=WORDS[size])
    values = from_words(bits, name)
    guarded = Guarded(shape[::-1], [0, 1], [1, 1], 1, name)
    _core.copy_strided(values.T, guarded.tensor)
    guarded.check(values.T.contiguous())
    for dims in itertools.permutations(range(3)):
        cube = values.reshape(1, *shape).expand(5, *shape).permute(dims)
        guarded = Guarded(cube.shape, [0, 1, 2], [1, 1, 1], 0, name)
        _core.copy_strided(cube, guarded.tensor)
        guarded.check(cube.contiguous())


@pytest.mark.parametrize("name", ["uint8", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(1024, 512), (513, 771), (5, 70_001), (130_000, 3)])
def test_large_transpositions(name, shape):
    """So large that they are written past the cache."""
    size = torch_dtype(name).itemsize
    bits = np.random.default_rng(2).integers(0, 1 << (8 * size), shape, dtype=WORDS[size])
    values = from_words(bits, name)
    for lead, gap in ((0, 1), (64 - 16, 1), (5, 2)):
        guarded = Guarded(shape[::-1], [0, 1], [gap, 1], lead, name)
        _core.copy_strided(values.T, guarded.tensor)
        guarded.check(values.T.contiguous())


@pytest.mark.parametrize(
    ("rows", "cols"),
    [
        *[(1, 300_001), (1, 1 << 20), (2, 140_000), (2, 262_144 + 4096), (7, 65_537)],
        *[(64, 8192), (65, 4095), (259, 1500), (250, 1024)],
        *[(1100, 256), (4099, 64), (2600, 129), (9000, 48)],
    ],
)
def test_large_rows(rows, cols):
    """So large that they are written past the cache, in every way in which rows are streamed."""
    bits = np.random.default_rng(3).integers(0, 256, (rows, cols + 100), dtype=np.uint8)
    values = torch.from_numpy(bits)
    for first, lead, gap in ((0, 0, 1), (0, 64 - 16, 2), (3, 1, 1), (64, 17, 3)):
        guarded = Guarded([rows, cols], [0, 1], [gap, 1], lead, "uint8")
        source = values[:, first : first + cols]
        _core.copy_strided(source, guarded.tensor)
        guarded.check(source.clone())
    guarded = Guarded([rows * cols], [0], [1], 3, "uint8")
    packed = values[:, :cols].reshape(-1).clone()
    _core.copy_strided(packed, guarded.tensor)
    guarded.check(packed)


@pytest.mark.parametrize(("src", "dst"), [*itertools.permutations(FLOATING[1:4], 2)])
def test_large_conversions(src, dst):
    rng = np.random.default_rng(4)
    bits = rng.integers(0, 256, 4 * 400_000, dtype=np.uint8)
    values = from_words(bits.view(WORDS[torch_dtype(src).itemsize])[:390_000].copy(), src)
    for lead, gap, rows in ((0, 1, 1), (1, 1, 1), (62, 2, 3), (6, 1, 65)):
        guarded = Guarded([rows, 390_000 // rows], [0, 1], [gap, 1], lead, dst)
        source = values.reshape(rows, -1)
        _core.copy_strided(source, guarded.tensor)
        guarded.check(expected_of(source, dst))


def test_negative_strides_of_the_source():
    values = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    for flips in itertools.product([1, -1], repeat=3):
        source = values[:: flips[0], :: flips[1], :: flips[2]]
        result = np.zeros_like(values)
        _core.copy_strided(source, result)
        assert (result == source).all()
        assert _core.digest_strided(source) == _core.digest(source.tobytes())


def test_six_dims():
    values = torch.arange(2**6 * 3, dtype=torch.float32).reshape(2, 2, 2, 2, 2, 6)
    for order in ([5, 4, 3, 2, 1, 0], [3, 0, 5, 1, 4, 2]):
        source = values.permute(order)
        assert_same(copied(source, "float32"), source.contiguous())
        assert _core.digest_strided(source) == _core.digest_strided(source.contiguous())


def test_digest_of_long_strided_runs():
    values = torch.arange(30_000, dtype=torch.int16).reshape(10_000, 3)
    for column in range(3):
        packed = values[:, column].contiguous()
        assert _core.digest_strided(values[:, column]) == _core.digest(packed.numpy().tobytes())


def test_shapes_must_be_equal():
    with pytest.raises(_core.UsageError, match=r"shapes differ: src is \[2, 3\], dst is \[3, 2\]"):
        _core.copy_strided(torch.zeros(2, 3), torch.zeros(3, 2))
