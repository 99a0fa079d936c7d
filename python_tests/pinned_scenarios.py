"""Calls whose results test_pinned.py compares with stored digests, bit for bit.

Inputs come from whole-number arithmetic alone, so that no library's random generator is part of a
digest. A digest of tensors covers names, types, shapes and every bit. The stored ones are what this
prints, made before the inside of the core changed; they are made again only where results are meant
to change, and then the commit says why:

    python python_tests/pinned_scenarios.py > python_tests/pinned.json
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tiny_models as tiny
import torch
from pinned_plans import plan_cases
from ranks import run_threads
from two_step_scenarios import cut

import hybridengine
from hybridengine import Communicator, Layout, LayoutRule, Resharder, Spec, TwoStep
from hybridengine import masked_all_reduce as masked

Tensors = dict[str, torch.Tensor]
Digests = dict[str, Any]


def mixed(count: int, seed: int) -> np.ndarray:
    """`count` numbers of 32 bits (splitmix64, upper half)."""
    state = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed * 1_000_003)
    with np.errstate(over="ignore"):
        state *= np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((state ^ (state >> np.uint64(31))) >> np.uint64(32)).astype(np.uint32)


def any_bits(shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    """Every bit pattern is possible: NaN, infinities, numbers too small or large to convert."""
    kind, count = getattr(torch, dtype), math.prod(shape)
    words = torch.from_numpy(mixed(count * kind.itemsize // 4 + 1, seed).view(np.uint8))
    return words[: count * kind.itemsize].view(kind).reshape(shape).clone()


def summable(shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    """Finite numbers of either sign over eight powers of two: sums depend on their order."""
    drawn = mixed(math.prod(shape), seed).astype(np.int64)
    values = ((drawn >> 8) - (1 << 23)) * np.exp2(-(20.0 + drawn % 8))
    return torch.from_numpy(values).reshape(shape).to(getattr(torch, dtype))


def digest(tensors: Tensors) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


# --- reshard ---

_FACTS = tiny.config(
    hidden=32, heads=8, kv_heads=2, head_dim=4, intermediate=48, layers=2, vocab=300
)
ODD = Spec.from_tensors(
    [
        ("scalar", (), "float32"),
        ("empty", (0, 5), "float32"),
        ("bytes", (1001, 3), "int8"),
        ("halves", (77, 13), "bfloat16"),
        ("wide", (5, 401), "float64"),
        ("cube", (7, 11, 13), "float16"),
    ]
)


@dataclass(frozen=True)
class Move:
    """A reshard of every tensor of a spec."""

    src: str
    dst: str
    spec: Spec
    dtype: str | None = None
    op: str = "copy"

    @property
    def world(self) -> int:
        return 1 + max(max(each.ranks) for each in self.layouts)

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        target = self.spec if self.dtype is None else self.spec.with_dtype(self.dtype)
        return LayoutRule.parse(self.src).bind(self.spec), LayoutRule.parse(self.dst).bind(target)

    def source(self, rank: int) -> Tensors | None:
        src, _ = self.layouts
        if rank not in src.ranks:
            return None
        make, own = (any_bits, 0) if self.op == "copy" else (summable, 100 * rank)
        full = {
            name: make(shape, dtype, own + index)
            for index, (name, shape, dtype) in enumerate(self.spec.tensors)
        }
        return cut(full, src, rank)


def _model(dtype: str = "float32", **facts: Any) -> Spec:
    return Spec.from_config(_FACTS | facts, dtype)


_TIED = _model("bfloat16", tie_word_embeddings=True)
MOVES = {
    "training to generation": Move("fsdp2(4)", "vllm(tp=2)", _model()),
    "uneven": Move("fsdp2(3)@1-3", "vllm(tp=2)@0-1", _model("bfloat16")),
    "float32 to bfloat16": Move("fsdp2(2)", "vllm(tp=2)", _model(), dtype="bfloat16"),
    "bfloat16 to float32": Move("fsdp2(2)", "vllm(tp=4)", _model("bfloat16"), dtype="float32"),
    "float32 to float16": Move("replicated(2)", "fsdp2(3)", _model(), dtype="float16"),
    "tensor parallel": Move("vllm(tp=2)", "vllm(tp=4)", _model()),
    "tensor parallel to hf": Move("vllm(tp=4)", "hf@4", _model("bfloat16")),
    "generation to training": Move("vllm(tp=2,pp=2)", "fsdp2(3)@1-3", _model()),
    "both cuts": Move("fsdp2(2,tp=2)", "vllm(tp=4)", _model("bfloat16")),
    "replicas": Move("fsdp2(2,replicas=2)", "vllm(tp=2,replicas=2)", _model()),
    "tied": Move("fsdp2(2,replicas=2)", "vllm(tp=2,pp=2)", _TIED),
    "odd tensors": Move("fsdp2(3)", "replicated(4)", ODD),
    "sum": Move("partial(sum, replicated(3))", "fsdp2(3)", _model(), op="sum"),
    "mean": Move("partial(mean, replicated(4))", "vllm(tp=2)", _model("bfloat16"), op="mean"),
}


def move(comm: Communicator, case: Move, bucket_bytes: int) -> dict[str, str]:
    """Digests of every way to run it: all must be the same."""
    src, dst = case.layouts
    mine = case.source(comm.rank)

    def resharder(**options: Any) -> Resharder:
        return Resharder(mine, src, dst, comm=comm, bucket_bytes=bucket_bytes, **options)

    fresh = resharder()
    out = {
        name: torch.zeros(shape, dtype=getattr(torch, dtype))
        for name, shape, dtype in (dst.locals(comm.rank) if comm.rank in dst.ranks else ())
    }
    into = resharder(out=out)
    found = {"first": digest(fresh.run()), "again": digest(fresh.run())}
    found |= {"out": digest(into.run()), "out again": digest(into.run())}
    if case.op == "copy":
        streamed: Tensors = {}
        fresh.stream(streamed.__setitem__)
        found["stream"] = digest(streamed)
    return found


def moved(name: str, transport: str, bucket_bytes: int) -> list[dict[str, str]]:
    case = MOVES[name]
    return run_threads(case.world, move, case, bucket_bytes, transport=transport)


# --- collectives ---

_SHAPES = [(), (5,), (0, 3), (129, 7), (4099,), (3, 5, 17)]
_DTYPES = {
    "sum": ("float32", "bfloat16", "float16", "float64", "int32", "int8"),
    "mean": ("float32", "bfloat16", "float16", "float64"),
    "max": ("float32", "bfloat16", "int64"),
    "min": ("float32", "float16", "int16"),
}
WORLDS = (2, 3, 4)


def _inputs(dtype: str, rank: int, times: int | None = None) -> list[torch.Tensor]:
    """A tensor of each shape, of its own on each rank; with `times`, that many rows for each."""
    shapes = [each if times is None else (times * each[0], *each[1:]) for each in _SHAPES if each]
    shapes = _SHAPES if times is None else shapes
    return [summable(shape, dtype, 100 * rank + i) for i, shape in enumerate(shapes)]


def _named(tensors: list[torch.Tensor], prefix: str) -> Tensors:
    return {f"{prefix} {index}": each for index, each in enumerate(tensors)}


def collect(comm: Communicator, bucket_bytes: int | str) -> Digests:
    options: dict[str, Any] = {"comm": comm, "bucket_bytes": bucket_bytes}
    found: Digests = {}
    for op, dtypes in _DTYPES.items():
        reduced: Tensors = {}
        parts: Tensors = {}
        for dtype in dtypes:
            whole = _inputs(dtype, comm.rank)
            hybridengine.all_reduce(whole, op, **options)
            reduced |= _named(whole, dtype)
            rows = _inputs(dtype, comm.rank, comm.world)
            kept = [each[: len(each) // comm.world].clone() for each in rows]
            hybridengine.reduce_scatter(kept, rows, op, **options)
            parts |= _named(kept, dtype)
        found[f"all_reduce {op}"] = digest(reduced)
        found[f"reduce_scatter {op}"] = digest(parts)
    mine = _inputs("bfloat16", comm.rank, 1)
    gathered = [each.repeat(comm.world, *[1] * (each.dim() - 1)) for each in mine]
    hybridengine.all_gather(gathered, mine, **options)
    found["all_gather"] = digest(_named(gathered, "all"))
    given = _inputs("float64", comm.rank)
    hybridengine.broadcast(given, src=comm.world - 1, **options)
    found["broadcast"] = digest(_named(given, "all"))
    return found


def collected(world: int, transport: str, bucket_bytes: int | str) -> list[Digests]:
    return run_threads(world, collect, bucket_bytes, transport=transport)


# --- masked_all_reduce ---

_MASKED_SHAPES = [(65, 33), (64,), (3, 4, 5), (0, 7), (1023,)]
_THRESHOLDS = (-math.inf, 0.3, 0.8, math.inf)


def _scores(granularity: str, rank: int) -> list[torch.Tensor]:
    dims = {"element": None, "row": 1, "tensor": 0}[granularity]
    return [
        torch.from_numpy(mixed(math.prod(shape[:dims]), 10_000 + 100 * rank + i) / 2.0**32)
        .float()
        .reshape(shape[:dims])
        for i, shape in enumerate(_MASKED_SHAPES)
    ]


def _masked_values(dtype: str, rank: int, seed: int) -> list[torch.Tensor]:
    return [summable(shape, dtype, seed + 100 * rank + i) for i, shape in enumerate(_MASKED_SHAPES)]


def _poison(values: list[torch.Tensor], scores: list[torch.Tensor], below: float) -> None:
    """NaN where an entry does not take part: it must do no harm."""
    for each, score in zip(values, scores, strict=True):
        if each.dtype.is_floating_point and each.numel():
            hidden = (score < below).reshape(*score.shape, *[1] * (each.dim() - score.dim()))
            each.masked_fill_(hidden, math.nan)


def mask(comm: Communicator, granularity: str, bucket_bytes: int | str) -> Digests:
    found: Digests = {}
    for op in ("sum", "mean", "mean_world"):
        seen: Tensors = {}
        kept = 0
        dtypes = ("float32", "bfloat16", *(["int32"] if op == "sum" else []))
        for dtype, threshold, feedback in itertools.product(dtypes, _THRESHOLDS, (False, True)):
            values, scores = _masked_values(dtype, comm.rank, 500), _scores(granularity, comm.rank)
            residual = _masked_values(dtype, comm.rank, 900) if feedback else None
            if not feedback:
                _poison(values, scores, threshold)
            result = masked(
                values,
                scores,
                threshold,
                op=op,
                granularity=granularity,
                fill=3.0,
                counts=True,
                residual=residual,
                comm=comm,
                bucket_bytes=bucket_bytes,
            )
            key = f"{dtype} {threshold} {feedback}"
            seen |= _named(result.values, f"{key} values")
            seen |= _named(result.counts, f"{key} counts")
            seen |= _named(residual or [], f"{key} residual")
            kept += result.kept
        found[op] = f"{digest(seen)}, kept {kept}"
    return found


def masked_results(
    granularity: str, world: int, transport: str, bucket_bytes: int | str
) -> list[Digests]:
    return run_threads(world, mask, granularity, bucket_bytes, transport=transport)


# --- the two-step update ---

UPDATES = {  # training and its ranks per replica, generation, the types of both
    "float32": ("replicated(3)", 1, "vllm(tp=1,dp=3)", "float32", "float32"),
    "tensor parallel": ("fsdp2(1,replicas=2,tp=2)", 2, "vllm(tp=4)", "bfloat16", "bfloat16"),
    "generation in bfloat16": ("replicated(2)", 1, "vllm(tp=2)", "float32", "bfloat16"),
}


def _exact(spec: Spec, layout: Layout, rank: int, seed: int) -> Tensors:
    """Multiples of 1/64 in -1 to 1: torch adds and squares them without rounding."""
    full = {
        name: torch.from_numpy((mixed(math.prod(shape), seed + i) % 128 - 64.0) / 64)
        .reshape(shape)
        .to(getattr(torch, dtype))
        for i, (name, shape, dtype) in enumerate(spec.tensors)
    }
    return cut(full, layout, rank)


def update(comm: Communicator, name: str) -> Digests:
    train, ranks_per_replica, gen, dtype, gen_dtype = UPDATES[name]
    layout = LayoutRule.parse(train).bind(spec := _model(dtype))
    params = {
        key: torch.nn.Parameter(each) for key, each in _exact(spec, layout, comm.rank, 0).items()
    }
    two_step = TwoStep(
        params,
        lambda all_of_them: torch.optim.SGD(all_of_them, lr=0.5, momentum=0.5),
        LayoutRule.parse(gen).bind(spec.with_dtype(gen_dtype)),
        comm=comm,
        train_layout=layout,
        max_norm=4.0,
    )
    norms = []
    for step in range(3):
        seed = 1000 * (step + 1) + 100 * (comm.rank // ranks_per_replica)
        gradients = _exact(spec, layout, comm.rank, seed)
        for key, each in params.items():
            each.grad = gradients[key]
        norms.append(two_step.step())
    return {
        "training": digest(dict(params)),
        "generation": digest(two_step.generation),
        "norms": norms,
    }


def updated(name: str, transport: str) -> list[Digests]:
    world = LayoutRule.parse(UPDATES[name][0]).size
    return run_threads(world, update, name, transport=transport)


def made_now() -> Digests:
    """Everything that is stored: by kind, case, and rank where ranks differ."""
    return {
        "reshard": {
            name: [each["first"] for each in moved(name, "loopback", 32 << 20)] for name in MOVES
        },
        "collectives": {str(world): collected(world, "loopback", "auto") for world in WORLDS},
        "masked": {
            kind: masked_results(kind, 3, "loopback", "auto")
            for kind in ("row", "element", "tensor")
        },
        "two_step": {name: updated(name, "loopback") for name in UPDATES},
        "plans": {name: case() for name, case in plan_cases().items()},
    }


if __name__ == "__main__":
    print(json.dumps(made_now(), indent=1))
