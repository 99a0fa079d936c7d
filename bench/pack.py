"""The host loops: copies, casts and sums of one process, each as a case of its own.

The bytes of a case are half of what it reads and writes, so that a copy counts once and `y += x`
one and a half times; memcpy beside it copies as many. With `-g N`, N processes do it at once.
HYBRIDENGINE_ISA chooses the instruction set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hybridengine import _core
from hybridengine._bench.flags import Options
from hybridengine._bench.index import INDEX
from hybridengine._bench.pattern import poison
from hybridengine._bench.record import Bench, Case, Volume
from hybridengine._bench.world import World
from hybridengine._core import UsageError

_ROWS = 4096
_COLS = 4096

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass
class PackJob:
    """`sources` get fresh data and `targets` poison, or `before` where the loop adds to them.
    `wanted` gives (target, expected) after one run."""

    sources: list[torch.Tensor]
    targets: list[torch.Tensor]
    run: Callable[[], None]
    wanted: Callable[[], list[Pair]]
    num_bytes: int  # half of what is read and written
    before: torch.Tensor | None = None


def _numbers(like: torch.Tensor, seed: int) -> torch.Tensor:
    """Small numbers whose sums neither overflow nor become denormal."""
    generator = torch.Generator().manual_seed(seed)
    block = torch.randn(1_048_573, generator=generator).to(like.dtype)
    times = -(-like.numel() // block.numel())
    return block.repeat(times)[: like.numel()].view(like.shape)


def _copies(source: torch.Tensor, target: torch.Tensor, pairs: list[Pair]) -> PackJob:
    """Copies every first of `pairs`, views of `source`, into the second, views of `target`."""

    def run() -> None:
        for src, dst in pairs:
            _core.copy_strided(src, dst)

    def wanted() -> list[Pair]:
        return [(dst, src.to(dst.dtype)) for src, dst in pairs]

    moved = sum(each.numel() * each.element_size() for pair in pairs for each in pair)
    return PackJob([source], [target], run, wanted, moved // 2)


def _shards(size: int, num_shards: int, unpack: bool = False) -> PackJob:
    """Every column shard of bf16 matrices, packed into a contiguous tensor; or the way back."""
    count = max(1, size // (_ROWS * _COLS * 2))
    width = _COLS // num_shards
    whole = torch.zeros(count, _ROWS, _COLS, dtype=torch.bfloat16)
    packed = torch.zeros(count, num_shards, _ROWS, width, dtype=torch.bfloat16)
    pairs = [
        (whole[at, :, shard * width : (shard + 1) * width], packed[at, shard])
        for at in range(count)
        for shard in range(num_shards)
    ]
    if unpack:
        return _copies(packed, whole, [(dst, src) for src, dst in pairs])
    return _copies(whole, packed, pairs)


def _permuted(size: int, num_shards: int) -> PackJob:
    """All column shards of a matrix in one copy."""
    count = max(1, size // (_ROWS * _COLS * 2))
    source = torch.zeros(count, _ROWS, num_shards, _COLS // num_shards, dtype=torch.bfloat16)
    target = torch.zeros(count, num_shards, _ROWS, _COLS // num_shards, dtype=torch.bfloat16)
    return _copies(
        source, target, [(source[at].permute(1, 0, 2), target[at]) for at in range(count)]
    )


def _odd_rows(size: int, row_elems: int) -> PackJob:
    """Rows whose ends fall amid cache lines, out of a matrix of another odd width."""
    pitch = 3 * row_elems + 7
    rows = size // (2 * row_elems)
    source = torch.zeros(rows, pitch, dtype=torch.bfloat16)
    target = torch.zeros(rows * row_elems + 1, dtype=torch.bfloat16)[1:].view(rows, row_elems)
    return _copies(source, target, [(source[:, 3 : 3 + row_elems], target)])


def _contiguous(size: int, src: torch.dtype, dst: torch.dtype) -> PackJob:
    count = 2 * size // (src.itemsize + dst.itemsize)
    source, target = torch.zeros(count, dtype=src), torch.zeros(count, dtype=dst)
    return _copies(source, target, [(source, target)])


def _transposed(size: int, dtype: torch.dtype, rows: int, cols: int) -> PackJob:
    count = max(1, size // (rows * cols * dtype.itemsize))
    source = torch.zeros(count, rows, cols, dtype=dtype)
    target = torch.zeros(count, cols, rows, dtype=dtype)
    return _copies(source, target, [(source[at].T, target[at]) for at in range(count)])


def _added(size: int, dtype: torch.dtype) -> PackJob:
    source = torch.zeros(2 * size // (3 * dtype.itemsize), dtype=dtype)
    target, before = torch.zeros_like(source), torch.zeros_like(source)
    return PackJob(
        [source],
        [target],
        lambda: _core.reduce("sum", source, target),
        lambda: [(target, before + source)],
        3 * source.nbytes // 2,
        before,
    )


def _folded(size: int, dtype: torch.dtype, num_sources: int) -> PackJob:
    count = 2 * size // ((num_sources + 1) * dtype.itemsize)
    sources = [torch.zeros(count, dtype=dtype) for _ in range(num_sources)]
    target = torch.zeros(count, dtype=dtype)

    def wanted() -> list[Pair]:
        total = sources[0].float()
        for source in sources[1:]:
            total += source.float()
        return [(target, total.to(dtype))]

    moved = (num_sources + 1) * target.nbytes
    return PackJob(
        sources, [target], lambda: _core.fold("sum", sources, target), wanted, moved // 2
    )


_BF16, _FP16, _FP32 = torch.bfloat16, torch.float16, torch.float32
_CASES: dict[str, Callable[[int], PackJob]] = {
    "copy": lambda size: _contiguous(size, _BF16, _BF16),
    "rows_tp2": lambda size: _shards(size, 2),
    "rows_tp4": lambda size: _shards(size, 4),
    "rows_tp8": lambda size: _shards(size, 8),
    "rows_256B": lambda size: _shards(size, 32),
    "rows_64B": lambda size: _shards(size, 128),
    "permuted_2KiB": lambda size: _permuted(size, 4),
    "permuted_256B": lambda size: _permuted(size, 32),
    "unpack_tp4": lambda size: _shards(size, 4, unpack=True),
    "unpack_tp8": lambda size: _shards(size, 8, unpack=True),
    "unpack_256B": lambda size: _shards(size, 32, unpack=True),
    "rows_odd_1000B": lambda size: _odd_rows(size, 500),
    "rows_odd_60B": lambda size: _odd_rows(size, 30),
    "fp32_bf16": lambda size: _contiguous(size, _FP32, _BF16),
    "bf16_fp32": lambda size: _contiguous(size, _BF16, _FP32),
    "fp32_fp16": lambda size: _contiguous(size, _FP32, _FP16),
    "fp16_fp32": lambda size: _contiguous(size, _FP16, _FP32),
    "fp16_bf16": lambda size: _contiguous(size, _FP16, _BF16),
    "transposed_bf16": lambda size: _transposed(size, _BF16, 4096, 4096),
    "transposed_fp32": lambda size: _transposed(size, _FP32, 4096, 2048),
    "transposed_odd": lambda size: _transposed(size, _BF16, 4100, 4097),
    "add_bf16": lambda size: _added(size, _BF16),
    "add_fp16": lambda size: _added(size, _FP16),
    "add_fp32": lambda size: _added(size, _FP32),
    "fold4_bf16": lambda size: _folded(size, _BF16, 4),
}
_SUMS = ("add", "fold")


def _ranks(options: Options) -> int:
    options.sizes()
    if not _chosen(options):
        raise UsageError(f"--only names no case. Cases are {', '.join(_CASES)}.")
    return 1


def _chosen(options: Options) -> list[str]:
    return [name for name in _CASES if not options.only or name.startswith(options.only)]


def _cases(options: Options) -> list[Case]:
    return [
        Case(size, _dtype(name), op="sum" if name.startswith(_SUMS) else "none", label=name)
        for size in options.sizes()
        for name in _chosen(options)
    ]


def _dtype(name: str) -> str:
    """torch's name of what a case writes."""
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    return names.get(name.rsplit("_", 1)[-1], "bfloat16")


def _setup(world: World, options: Options, case: Case, in_place: bool) -> PackJob:
    return _CASES[case.label](case.size_bytes)


def _fill(job: PackJob, number: int) -> None:
    for at, source in enumerate(job.sources):
        source.copy_(_numbers(source, 31 * number + at))
    for target in job.targets:
        poison(target)
        if job.before is not None:
            job.before.copy_(_numbers(target, 31 * number + 29))
            target.copy_(job.before)


def _run(job: PackJob) -> None:
    job.run()


def _count_wrong(job: PackJob, results: None) -> int:
    return sum(int((found != expected).sum()) for found, expected in job.wanted())


def _volume(job: PackJob) -> Volume:
    count = job.num_bytes // job.targets[0].element_size()
    return Volume(job.num_bytes, count, 1.0, job.num_bytes, {"isa": _core.isa()})


BENCH = Bench(
    name="pack",
    flags=INDEX["pack"].flags,
    ranks=_ranks,
    cases=_cases,
    setup=_setup,
    fill=_fill,
    run=_run,
    count_wrong=_count_wrong,
    volume=_volume,
    halves=(False,),
    travels=False,
)
