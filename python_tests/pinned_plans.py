"""Plans of many ranks, without weights, whose digests test_pinned.py compares with stored ones.

pinned_scenarios.py stores them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tiny_models as tiny

import hybridengine
from hybridengine import Spec

Digests = dict[str, Any]

_MANY_HEADS = tiny.config(
    hidden=64, heads=64, kv_heads=8, head_dim=1, intermediate=64, layers=4, vocab=200
)
_SPECS = {
    "model": Spec.from_config(_MANY_HEADS),
    "odd": Spec.from_tensors(
        [("scalar", (), "float32"), ("empty", (0, 5), "float32"), ("cube", (7, 11, 13), "int8")]
    ),
}
_PLANS = [
    ("fsdp2(8)", "vllm(tp=4,dp=2)", None),
    ("fsdp2(64)", "vllm(tp=8,dp=8)", None),
    ("fsdp2(64)", "vllm(tp=8,pp=4,dp=2)", "bfloat16"),
    ("fsdp2(16,replicas=4)", "vllm(tp=4,replicas=16)", None),
    ("fsdp2(8,tp=4)", "vllm(tp=8,pp=2)", None),
    ("fsdp2(8,replicas=2,tp=4)", "vllm(tp=64)", None),
    ("fsdp2(48)", "vllm(tp=16)@48-63", "bfloat16"),
    ("fsdp2(7)", "vllm(tp=2,pp=3)@2-7", None),
    ("tensor_parallel(8)", "tensor_parallel(4,replicas=4)", None),
    ("vllm(tp=8)", "fsdp2(24)", None),
    ("vllm(tp=16,pp=2)", "vllm(tp=8,pp=4)", "float16"),
    ("replicated(5)", "fsdp2(7)@3-9", None),
    ("replicated(6)@10-15", "vllm(tp=8,dp=2)", None),
    ("hf", "vllm(tp=8,dp=4)", None),
    ("vllm(tp=8)", "hf@9", None),
    ("fsdp2(32)", "fsdp2(48)@16-63", None),
    ("partial(sum, replicated(6))", "fsdp2(6)", None),
    ("partial(mean, fsdp2(4,replicas=4,tp=2))", "vllm(tp=4,dp=8)", None),
]


def planned(src: str, dst: str, dtype: str | None, spec: Spec) -> tuple[Any, list[dict[str, Any]]]:
    """The certificate, and every move as a dict. The one place that knows where plans keep them."""
    plan = hybridengine.plan(spec, src, dst, dtype=dtype)
    ranks = [row["rank"] for row in plan.certificate.ranks]
    return plan.certificate, [move for rank in ranks for move in plan.moves_of(rank)]


def plan_digests(src: str, dst: str, dtype: str | None, spec: Spec) -> Digests:
    """`bytes`: received/bound/sent by each rank. `moves`: which elements of which tensor go from
    whom to whom, in which step and how they are combined; whether in one box or in many."""
    certificate, moves = planned(src, dst, dtype, spec)
    keys = ("rank", "received_bytes", "bound_bytes", "sent_bytes")
    rows = [tuple(row[key] for key in keys) for row in certificate.ranks]
    shapes = {name: shape for name, shape, _ in spec.tensors}
    elements: dict[tuple[Any, ...], np.ndarray] = {}
    for each in moves:
        key = tuple(each[part] for part in ("step", "op", "tensor", "src", "dst"))
        taken = elements.setdefault(key, np.zeros(shapes[each["tensor"]], dtype=bool))
        ends = zip(each["start"], each["size"], strict=True)
        taken[tuple(slice(start, start + count) for start, count in ends)] = True
    total = hashlib.sha256()
    for key in sorted(elements):
        total.update(repr(key).encode() + np.packbits(elements[key]).tobytes())
    return {
        "bytes": hashlib.sha256(repr(rows).encode()).hexdigest()[:16],
        "moved_bytes": certificate.moved_bytes,
        "moves": total.hexdigest()[:16],
    }


def plan_cases() -> dict[str, Callable[[], Digests]]:
    """By name; what a spec's tensors cannot be cut for is left out."""
    cases: dict[str, Callable[[], Digests]] = {}
    for src, dst, dtype in _PLANS:
        for name, spec in _SPECS.items():
            if name == "odd" and ("tp=" in src + dst or "tensor_parallel" in src + dst):
                continue
            key = f"{name}: {src} -> {dst}" + (f" as {dtype}" if dtype else "")
            cases[key] = lambda a=src, b=dst, c=dtype, d=spec: plan_digests(a, b, c, d)
    return cases
