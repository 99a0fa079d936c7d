"""Speed of the host loops beside memcpy of as many bytes, in the same process and in turn.

A ratio is (bytes of the case / its seconds) over the same of a memcpy timed just before, and the
median over the repetitions is shown. Seconds are those that the thread had a core, so that other
work on the machine disturbs less. The bytes of a case are half of what it reads and writes, so
that a copy counts once and `y += x` one and a half times.

    python bench/pack.py                     # all cases, the loops that the machine chooses
    HYBRIDENGINE_ISA=x86-64-v3 python bench/pack.py --only rows,add --repeat 15

Exits with 1 where a result is wrong.
"""

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hybridengine import _core

_ROWS = 4096
_COLS = 4096


@dataclass
class Case:
    name: str
    num_bytes: int  # half of what is read and written
    run: Callable[[], None]
    wrong: Callable[[], int]  # elements that differ from torch's result


def _random(count: int, dtype: str) -> torch.Tensor:
    """Small numbers whose sums neither overflow nor become denormal; `count` elements."""
    block = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1)).to(
        getattr(torch, dtype)
    )
    return block.repeat(-(-count // block.numel()))[:count].clone()


def _count_wrong(got: torch.Tensor, expected: torch.Tensor) -> int:
    return int((got != expected).sum())


def _copy_case(name: str, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Case:
    """Copies every source into its destination; the destinations start as zeros."""

    def run() -> None:
        for src, dst in pairs:
            _core.copy_strided(src, dst)

    def wrong() -> int:
        return sum(_count_wrong(dst, src.to(dst.dtype)) for src, dst in pairs)

    both = sum(t.numel() * t.element_size() for pair in pairs for t in pair)
    return Case(name, both // 2, run, wrong)


def _shards(name: str, total_bytes: int, num_shards: int) -> Case:
    """Every column shard of bf16 matrices, packed into a contiguous tensor."""
    count = max(1, total_bytes // (_ROWS * _COLS * 2))
    src = _random(count * _ROWS * _COLS, "bfloat16").view(count, _ROWS, _COLS)
    width = _COLS // num_shards
    dst = torch.zeros(count, num_shards, _ROWS, width, dtype=torch.bfloat16)
    pairs = [
        (src[at, :, shard * width : (shard + 1) * width], dst[at, shard])
        for at in range(count)
        for shard in range(num_shards)
    ]
    return _copy_case(name, pairs)


def _permuted(name: str, total_bytes: int, num_shards: int) -> Case:
    """All column shards of a matrix in one copy."""
    count = max(1, total_bytes // (_ROWS * _COLS * 2))
    src = _random(count * _ROWS * _COLS, "bfloat16").view(count, _ROWS, num_shards, -1)
    dst = torch.zeros(count, num_shards, _ROWS, src.shape[-1], dtype=torch.bfloat16)
    return _copy_case(name, [(src[at].permute(1, 0, 2), dst[at]) for at in range(count)])


def _odd_rows(name: str, total_bytes: int, row_elems: int) -> Case:
    """Rows whose ends fall amid cache lines, out of a matrix of another odd width."""
    pitch = 3 * row_elems + 7
    rows = total_bytes // (2 * row_elems)
    src = _random(rows * pitch, "bfloat16").view(rows, pitch)
    dst = torch.zeros(rows * row_elems + 1, dtype=torch.bfloat16)[1:].view(rows, row_elems)
    return _copy_case(name, [(src[:, 3 : 3 + row_elems], dst)])


def _unpack(name: str, total_bytes: int, num_shards: int) -> Case:
    """The way back: contiguous shards into the columns of matrices."""
    case_pairs = []
    count = max(1, total_bytes // (_ROWS * _COLS * 2))
    width = _COLS // num_shards
    src = _random(count * _ROWS * _COLS, "bfloat16").view(count, num_shards, _ROWS, width)
    dst = torch.zeros(count, _ROWS, _COLS, dtype=torch.bfloat16)
    for at in range(count):
        for shard in range(num_shards):
            case_pairs.append((src[at, shard], dst[at, :, shard * width : (shard + 1) * width]))
    return _copy_case(name, case_pairs)


def _contiguous(name: str, total_bytes: int, src_dtype: str, dst_dtype: str) -> Case:
    both = getattr(torch, src_dtype).itemsize + getattr(torch, dst_dtype).itemsize
    count = 2 * total_bytes // both
    src = _random(count, src_dtype)
    return _copy_case(name, [(src, torch.zeros(count, dtype=getattr(torch, dst_dtype)))])


def _transposed(name: str, total_bytes: int, dtype: str, rows: int, cols: int) -> Case:
    count = max(1, total_bytes // (rows * cols * getattr(torch, dtype).itemsize))
    src = _random(count * rows * cols, dtype).view(count, rows, cols)
    dst = torch.zeros(count, cols, rows, dtype=src.dtype)
    return _copy_case(name, [(src[at].T, dst[at]) for at in range(count)])


def _added(name: str, total_bytes: int, dtype: str) -> Case:
    count = 2 * total_bytes // (3 * getattr(torch, dtype).itemsize)
    src = _random(count, dtype)
    dst = torch.zeros_like(src)

    def wrong() -> int:
        before = _random(count, dtype)
        dst.copy_(before)
        _core.reduce("sum", src, dst)
        return _count_wrong(dst, before + src)

    return Case(name, 3 * count * src.element_size() // 2, lambda: _add(src, dst), wrong)


def _add(src: torch.Tensor, dst: torch.Tensor) -> None:
    _core.reduce("sum", src, dst)


def _folded(name: str, total_bytes: int, dtype: str, num_srcs: int) -> Case:
    count = 2 * total_bytes // ((num_srcs + 1) * getattr(torch, dtype).itemsize)
    srcs = [_random(count, dtype) for _ in range(num_srcs)]
    dst = torch.zeros_like(srcs[0])

    def wrong() -> int:
        total = srcs[0].float()
        for src in srcs[1:]:
            total += src.float()
        return _count_wrong(dst, total.to(dst.dtype))

    num_bytes = (num_srcs + 1) * count * dst.element_size() // 2
    return Case(name, num_bytes, lambda: _core.fold("sum", srcs, dst), wrong)


_CASES: dict[str, Callable[[str, int], Case]] = {
    "copy": lambda name, size: _contiguous(name, size, "bfloat16", "bfloat16"),
    "rows_tp2": lambda name, size: _shards(name, size, 2),
    "rows_tp4": lambda name, size: _shards(name, size, 4),
    "rows_tp8": lambda name, size: _shards(name, size, 8),
    "rows_256B": lambda name, size: _shards(name, size, 32),
    "rows_64B": lambda name, size: _shards(name, size, 128),
    "permuted_2KiB": lambda name, size: _permuted(name, size, 4),
    "permuted_256B": lambda name, size: _permuted(name, size, 32),
    "unpack_tp4": lambda name, size: _unpack(name, size, 4),
    "unpack_tp8": lambda name, size: _unpack(name, size, 8),
    "unpack_256B": lambda name, size: _unpack(name, size, 32),
    "rows_odd_1000B": lambda name, size: _odd_rows(name, size, 500),
    "rows_odd_60B": lambda name, size: _odd_rows(name, size, 30),
    "fp32_bf16": lambda name, size: _contiguous(name, size, "float32", "bfloat16"),
    "bf16_fp32": lambda name, size: _contiguous(name, size, "bfloat16", "float32"),
    "fp32_fp16": lambda name, size: _contiguous(name, size, "float32", "float16"),
    "fp16_fp32": lambda name, size: _contiguous(name, size, "float16", "float32"),
    "fp16_bf16": lambda name, size: _contiguous(name, size, "float16", "bfloat16"),
    "transposed_bf16": lambda name, size: _transposed(name, size, "bfloat16", 4096, 4096),
    "transposed_fp32": lambda name, size: _transposed(name, size, "float32", 4096, 2048),
    "transposed_odd": lambda name, size: _transposed(name, size, "bfloat16", 4100, 4097),
    "add_bf16": lambda name, size: _added(name, size, "bfloat16"),
    "add_fp16": lambda name, size: _added(name, size, "float16"),
    "add_fp32": lambda name, size: _added(name, size, "float32"),
    "fold4_bf16": lambda name, size: _folded(name, size, "bfloat16", 4),
}


def _seconds(run: Callable[[], None]) -> float:
    began = time.thread_time()
    run()
    return time.thread_time() - began


def _measure(case: Case, repeat: int) -> tuple[float, float, int]:
    """Median ratio to memcpy, median seconds, wrong elements."""
    src = torch.ones(case.num_bytes, dtype=torch.uint8)
    dst = torch.zeros(case.num_bytes, dtype=torch.uint8)

    def memcpy() -> None:
        ctypes.memmove(dst.data_ptr(), src.data_ptr(), case.num_bytes)

    case.run()
    memcpy()
    wrong = case.wrong()
    pairs = [(_seconds(memcpy), _seconds(case.run)) for _ in range(repeat)]
    ratio = statistics.median(plain / ours for plain, ours in pairs)
    return ratio, statistics.median(ours for _, ours in pairs), wrong


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=128, help="bytes of a case, in MiB")
    parser.add_argument("--repeat", type=int, default=7, help="timed repetitions")
    parser.add_argument("--only", default="", help="names of cases, or their beginnings")
    parsed = parser.parse_args(arguments)
    parsed.names = [n for n in _CASES if n.startswith(tuple(parsed.only.split(",")))]
    if parsed.mib < 1 or parsed.repeat < 1 or not parsed.names:
        parser.error(f"nothing to measure. Cases are {', '.join(_CASES)}.")
    return parsed


def main(arguments: list[str]) -> int:
    """Prints the table; 1 where a result is wrong."""
    parsed = _parse(arguments)
    print(f"# {_core.build_facts()['commit']}, {_core.isa()}, ratios to memcpy of as many bytes")
    print(f"#{'case':>17} {'MiB':>7} {'ms':>8} {'ratio':>6} {'#wrong':>7}")
    total_wrong = 0
    for name in parsed.names:
        case = _CASES[name](name, parsed.mib << 20)
        ratio, seconds, wrong = _measure(case, parsed.repeat)
        total_wrong += wrong
        mib = case.num_bytes / (1 << 20)
        print(f"{name:>18} {mib:7.0f} {seconds * 1e3:8.2f} {ratio:6.2f} {wrong:7d}", flush=True)
    return int(total_wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
