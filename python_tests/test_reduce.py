"""Reductions of contiguous runs (csrc/device/reduce.h), with numpy and torch as oracles."""

import numpy as np
import pytest
import torch

from hybridengine import _core

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
FLOATING = ["float64", "float32", "float16", "bfloat16"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint8"]
COUNTS = [0, 1, 7, 8, 15, 16, 17, 33, 1023, 1024, 1025, 5001]
NAN = {"float64": 0x7FF8 << 48, "float32": 0x7FC0 << 16, "float16": 0x7E00, "bfloat16": 0x7FC0}


@pytest.fixture(scope="module", autouse=True, params=_core.usable_isas())
def isa_of_the_loops(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRIDENGINE_ISA", request.param)
        _core.refresh_isa()
        yield
    _core.refresh_isa()


def run_of(name, count, seed, offset=0):
    """Random bits, so that NaN, inf and denormals occur, and ordinary numbers, at any address."""
    dtype = getattr(torch, name)
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, offset + count * dtype.itemsize + 8, dtype=np.uint8)
    values = torch.frombuffer(raw, dtype=dtype, offset=offset, count=max(count, 1))[:count]
    if dtype.is_floating_point:
        values[::2] = torch.from_numpy(rng.standard_normal(len(values[::2]))).to(dtype)
        values[1::9] = torch.tensor(0.0 if seed % 2 else -0.0, dtype=dtype)
    return values


def words(tensor):
    flat = tensor.clone().reshape(-1).contiguous()
    if flat.numel() == 0:
        return np.zeros(0, WORDS[flat.element_size()])
    return flat.view(torch.uint8).numpy().view(WORDS[flat.element_size()])


def wide(tensor):
    """As numpy, in the type in which it is accumulated."""
    return (
        tensor.float() if tensor.element_size() == 2 and is_floating(tensor) else tensor
    ).numpy()


def is_floating(tensor):
    return tensor.dtype.is_floating_point


def combined(op, a, b):
    """Numpy's result, with our rules for NaN and zeros."""
    if op == "sum":
        with np.errstate(all="ignore"):
            return a + b
    result = (np.minimum if op == "min" else np.maximum)(a, b)
    if a.dtype.kind == "f":
        zeros = (a == 0) & (b == 0)
        signs = (np.signbit(a) | np.signbit(b)) if op == "min" else np.signbit(a) & np.signbit(b)
        result = np.where(zeros, np.where(signs, -0.0, 0.0).astype(a.dtype), result)
    return result


def assert_rounded(got, expected):
    """`got` is the accumulator `expected`, rounded once, with the one NaN."""
    name = str(got.dtype)[6:]
    rounded = torch.from_numpy(np.ascontiguousarray(expected)).to(got.dtype)
    bits = words(rounded).copy()
    if is_floating(got):
        bits[np.isnan(expected)] = NAN[name]
    assert (words(got) == bits).all()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("op", ["sum", "min", "max"])
def test_reduce_of_two_runs(op, count):
    for name in FLOATING + INTEGERS:
        src, dst = run_of(name, count, 1, offset=3), run_of(name, count, 2, offset=1)
        expected = combined(op, wide(dst.clone()), wide(src.clone()))
        before = words(src).copy()
        _core.reduce(op, src, dst)
        assert_rounded(dst.clone(), expected)
        assert (words(src) == before).all()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("num_srcs", [1, 2, 3, 8])
@pytest.mark.parametrize("op", ["sum", "min", "max"])
def test_fold_rounds_once_and_equals_accumulate_and_finish(op, num_srcs, count):
    for name in FLOATING + INTEGERS:
        divisor = num_srcs if name in FLOATING else 1
        srcs = [run_of(name, count, seed, offset=seed) for seed in range(num_srcs)]
        total = wide(srcs[0].clone())
        accumulator = torch.from_numpy(total.copy())
        for src in srcs[1:]:
            total = combined(op, total, wide(src.clone()))
            _core.accumulate(op, src, accumulator)
        if name in FLOATING:
            with np.errstate(all="ignore"):
                total = total / total.dtype.type(divisor)
        folded, finished = torch.zeros_like(srcs[0]), torch.zeros_like(srcs[0])
        _core.fold(op, srcs, folded, divisor)
        _core.finish(accumulator, divisor, finished)
        assert_rounded(folded, total)
        assert_rounded(finished, total)
        for place in {0, num_srcs - 1}:  # dst may be any of the sources
            copies = [src.clone() for src in srcs]
            _core.fold(op, copies, copies[place], divisor)
            assert (words(copies[place]) == words(folded)).all()
            copies, second = [src.clone() for src in srcs], torch.zeros_like(folded)
            _core.fold_twice(op, copies, copies[place], second, divisor)
            assert (words(copies[place]) == words(folded)).all()
            assert (words(second) == words(folded)).all()


def test_one_rounding_where_two_would_differ():
    srcs = [torch.tensor([value], dtype=torch.bfloat16) for value in (256.0, 1.0, 1.0)]
    out = torch.zeros(1, dtype=torch.bfloat16)
    _core.fold("sum", srcs, out)
    assert out.item() == 258  # rounding after each step stays at 256
    for src in srcs[1:]:
        _core.reduce("sum", src, srcs[0])
    assert srcs[0].item() == 256


def test_the_order_of_contributors_is_kept():
    values = [torch.tensor([value], dtype=torch.float32) for value in (1e30, 1.0, -1e30)]
    out = torch.zeros(1)
    _core.fold("sum", values, out)
    assert out.item() == 0
    _core.fold("sum", [values[0], values[2], values[1]], out)
    assert out.item() == 1


def test_nan_has_one_bit_pattern_however_it_came_about():
    payload = torch.tensor([0x7FC12345, -0x3EDCBB, 0x7F800001], dtype=torch.int32).view(
        torch.float32
    )
    infinity = torch.full((3,), float("inf"))
    for a, b in ((payload, infinity), (infinity, payload), (infinity, -infinity)):
        dst = b.clone()
        _core.reduce("sum", a, dst)
        assert words(dst).tolist() == [NAN["float32"]] * 3
    for op in ("sum", "min", "max"):
        out = torch.zeros(3)
        _core.fold(op, [payload], out)
        assert words(out).tolist() == [NAN["float32"]] * 3


def test_integers_wrap():
    dst = torch.tensor([127, -128, 1], dtype=torch.int8)
    _core.reduce("sum", torch.tensor([1, -1, 1], dtype=torch.int8), dst)
    assert dst.tolist() == [-128, 127, 2]


def test_what_cannot_be_reduced_is_refused():
    for name in ("bool", "float8_e4m3fn", "float8_e5m2"):
        run = torch.zeros(4, dtype=getattr(torch, name))
        for call in (
            lambda run=run: _core.reduce("sum", run, run.clone()),
            lambda run=run: _core.fold("sum", [run], run),
            lambda run=run: _core.accumulate("sum", run, torch.zeros(4)),
        ):
            with pytest.raises(_core.UsageError, match=f"cannot reduce {name}. Reduce float64"):
                call()
    run = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(_core.UsageError, match=r"cannot divide int32 by 2\. Divide floating"):
        _core.fold("sum", [run], run, 2)
    with pytest.raises(_core.UsageError, match=r"cannot divide float32 by 0\."):
        _core.finish(torch.zeros(4), 0, torch.zeros(4))
    with pytest.raises(_core.UsageError, match="nothing to fold"):
        _core.fold("sum", [], run)
    with pytest.raises(_core.UsageError, match=r"'mean' is not a reduction\. Use sum, min or max"):
        _core.reduce("mean", run, run.clone())
    with pytest.raises(_core.UsageError, match="runs differ: 3 elements of int32 beside 4, int32"):
        _core.reduce("sum", run[:3], run)
