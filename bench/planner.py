"""Seconds to bind, plan and schedule models that exist only as shapes. One core, no weights.

`moe` is shaped like Qwen3-30B-A3B (18 867 tensors), from 16 ranks in two pipeline stages, with the
experts of a stage spread over its 8 ranks, to 4 replicas of tensor parallelism over 4; its source
is laid out by hand, so only its destination is bound. The others take small matrices from 16 chunks
of dim 0 to tensor parallelism over 4 ranks, or whole onto 4.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hybridengine import _core
from hybridengine._bench import results
from hybridengine._bench.flags import Options, parse
from hybridengine._core import UsageError

SUMMARY = "seconds to bind, plan and schedule"

LAYERS, EXPERTS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, EXPERT_SIZE, VOCAB = (
    48,
    128,
    2048,
    32,
    4,
    128,
    768,
    151936,
)
STAGES, STAGE_RANKS = 2, 8


@dataclass(frozen=True)
class Case:
    """`src` and `dst` bind a side; `src` is None where that side is laid out by hand."""

    spec: Any
    src: Callable[[], Any]
    dst: Callable[[], Any]
    src_is_bound: bool = True


def moe_rows() -> list[tuple[str, tuple[int, ...], str]]:
    rows: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (VOCAB, HIDDEN))]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        rows += [
            (f"{at}.self_attn.q_proj.weight", (HEADS * HEAD_DIM, HIDDEN)),
            (f"{at}.self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)),
            (f"{at}.self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)),
            (f"{at}.self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)),
            (f"{at}.self_attn.q_norm.weight", (HEAD_DIM,)),
            (f"{at}.self_attn.k_norm.weight", (HEAD_DIM,)),
            (f"{at}.input_layernorm.weight", (HIDDEN,)),
            (f"{at}.post_attention_layernorm.weight", (HIDDEN,)),
            (f"{at}.mlp.gate.weight", (EXPERTS, HIDDEN)),
        ]
        for expert in range(EXPERTS):
            rows += [
                (f"{at}.mlp.experts.{expert}.gate_proj.weight", (EXPERT_SIZE, HIDDEN)),
                (f"{at}.mlp.experts.{expert}.up_proj.weight", (EXPERT_SIZE, HIDDEN)),
                (f"{at}.mlp.experts.{expert}.down_proj.weight", (HIDDEN, EXPERT_SIZE)),
            ]
    rows += [("model.norm.weight", (HIDDEN,)), ("lm_head.weight", (VOCAB, HIDDEN))]
    return [(name, shape, "bfloat16") for name, shape in rows]


def holders(name: str) -> list[int]:
    """The ranks of the source that hold a tensor: all of its stage, or the one of its expert."""
    parts = name.split(".")
    if "layers" not in parts:
        stage = 0 if "embed" in name else STAGES - 1
    else:
        stage = int(parts[2]) * STAGES // LAYERS
    first = stage * STAGE_RANKS
    if "experts" in parts:
        return [first + int(parts[5]) * STAGE_RANKS // EXPERTS]
    return list(range(first, first + STAGE_RANKS))


def moe_source(spec: Any, rows: list[tuple[str, tuple[int, ...], str]]) -> Any:
    locals_, pieces = [], []
    for name, shape, dtype in rows:
        strides = (shape[1], 1) if len(shape) == 2 else (1,)
        for rank in holders(name):
            locals_.append((rank, name, shape, dtype))
            pieces.append((name, rank, name, (0,) * len(shape), shape, 0, strides))
    ranks = list(range(STAGES * STAGE_RANKS))
    return _core.Layout("stages and experts", spec, ranks, locals_, pieces)


def tp_rule(replicas: int, tp: int) -> Any:
    """As an engine with fused qkv and gate_up holds it."""
    rows, columns = _core.Cut(0, 1, "even"), _core.Cut(1, 1, "even")
    at = "model.layers.*"
    fused = {"q": 0, "k": 1, "v": 2}
    rules = [
        _core.TensorRule(
            f"{at}.self_attn.{x}_proj.weight",
            f"{at}.self_attn.qkv_proj.weight",
            slot=slot,
            cuts=[rows],
        )
        for x, slot in fused.items()
    ]
    rules += [
        _core.TensorRule(
            f"{at}.mlp.experts.*.{x}_proj.weight",
            f"{at}.mlp.experts.*.gate_up_proj.weight",
            slot=slot,
            cuts=[rows],
        )
        for slot, x in enumerate(("gate", "up"))
    ]
    rules += [
        _core.TensorRule(f"{at}.self_attn.o_proj.weight", cuts=[columns]),
        _core.TensorRule(f"{at}.mlp.experts.*.down_proj.weight", cuts=[columns]),
        _core.TensorRule("model.embed_tokens.weight", cuts=[rows]),
        _core.TensorRule("lm_head.weight", cuts=[rows]),
        _core.TensorRule("**"),
    ]
    mesh = _core.Mesh([("replicas", replicas), ("tp", tp)], list(range(replicas * tp)))
    return _core.LayoutRule(f"tensor parallel {tp} x {replicas}", mesh, rules)


def plain_rule(text: str, ranks: int, cuts: list[Any]) -> Any:
    mesh = _core.Mesh([("n", ranks)], list(range(ranks)))
    return _core.LayoutRule(f"{text}({ranks})", mesh, [_core.TensorRule("**", cuts=cuts)])


def moe_case() -> Case:
    rows = moe_rows()
    spec = _core.Spec(rows)
    source = moe_source(spec, rows)
    rule = tp_rule(4, 4)
    return Case(spec, lambda: source, lambda: _core.bind(rule, spec), src_is_bound=False)


def matrices_case(count: int, dst_cuts: list[Any]) -> Case:
    """`count` matrices from 16 chunks to 4 ranks."""
    names = [f"model.layers.{i // 10}.block.{i % 10}.weight" for i in range(count)]
    spec = _core.Spec([(name, (240, 64), "bfloat16") for name in names])
    src = plain_rule("fsdp2", 16, [_core.Cut(0, 0, "chunk")])
    dst = plain_rule("tp" if dst_cuts else "replicated", 4, dst_cuts)
    return Case(spec, lambda: _core.bind(src, spec), lambda: _core.bind(dst, spec))


_CASES: dict[str, Callable[[], Case]] = {
    "fsdp-tp-10k": lambda: matrices_case(10_000, [_core.Cut(1, 0, "even")]),
    "fsdp-replicated-10k": lambda: matrices_case(10_000, []),
    "moe": moe_case,
    "fsdp-tp-100k": lambda: matrices_case(100_000, [_core.Cut(1, 0, "even")]),
}


def main(arguments: list[str]) -> int:
    """Prints a line per case; 0. Throws UsageError."""
    options = parse("planner", SUMMARY, ("only",), arguments)
    results.check_path(options.json_path)
    shared = results.provenance("planner", arguments)
    chosen = [name for name in _CASES if not options.only or name.startswith(options.only)]
    if not chosen:
        raise UsageError(f"--only names no case. Cases are {', '.join(_CASES)}.")
    rows = []
    silent = options.json_path == "-"
    if not silent:
        _print_header(shared)
    for name in chosen:
        rows.append(measure(name, _CASES[name](), options))
        if not silent:
            _print_row(rows[-1])
    if options.json_path is not None:
        results.write(options.json_path, [{**shared, **row} for row in rows])
    return 0


def measure(name: str, case: Case, options: Options) -> dict[str, Any]:
    """Medians over the iterations. With -c from 1 the plan and the schedule are proved first."""
    if options.check:
        _prove(case)
    times: list[tuple[float, ...]] = []
    for iteration in range(-options.warmup, options.iters):
        src, src_s = _timed(case.src)
        dst, dst_s = _timed(case.dst)
        plan, plan_s = _timed(_core.make_plan, src, dst)
        schedule, schedule_s = _timed(_core.make_schedule, plan)
        if iteration >= 0:
            times.append((src_s + dst_s if case.src_is_bound else dst_s, plan_s, schedule_s))
        facts = {
            "num_tensors": len(case.spec.tensors),
            "moves": plan.num_moves,
            "buckets": schedule.num_buckets,
            "received_over_bound": plan.certificate.received_over_bound,
            "sender_max_over_mean": plan.certificate.sender_max_over_mean,
        }
        del src, dst, plan, schedule
    bind, plan_seconds, schedule_seconds = map(statistics.median, zip(*times, strict=True))
    return {
        "case": name,
        **facts,
        "bind_seconds": bind,
        "plan_seconds": plan_seconds,
        "schedule_seconds": schedule_seconds,
    }


def _prove(case: Case) -> None:
    plan = _core.make_plan(case.src(), case.dst())
    plan.check()
    _core.make_schedule(plan).check()


def _timed(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    began = time.perf_counter()
    made = function(*args)
    return made, time.perf_counter() - began


def _print_header(shared: dict[str, Any]) -> None:
    sys.stdout.write(
        f"# hybridengine {shared['version']} (commit {shared['commit']}), planner\n"
        f"#{'tensors':>11}{'moves':>12}{'buckets':>12}{'bind':>10}{'plan':>10}{'schedule':>10}"
        "  case\n"
        f"#{'':>35}{'(ms)':>10}{'(ms)':>10}{'(ms)':>10}\n"
    )


def _print_row(row: dict[str, Any]) -> None:
    counts = "".join(f"{row[key]:12d}" for key in ("num_tensors", "moves", "buckets"))
    keys = ("bind_seconds", "plan_seconds", "schedule_seconds")
    times = "".join(f"{row[key] * 1e3:10.1f}" for key in keys)
    sys.stdout.write(f"{counts}{times}  {row['case']}\n")
    sys.stdout.flush()
