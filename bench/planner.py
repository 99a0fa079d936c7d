"""Seconds to bind, plan and schedule models that exist only as shapes. One core, no weights.

python bench/planner.py --case moe --repeat 5

Cases: `moe` is shaped like Qwen3-30B-A3B (18 867 tensors), from 16 ranks in two pipeline stages,
with the experts of a stage spread over its 8 ranks, to 4 replicas of tensor parallelism over 4.
`fsdp-tp` and `fsdp-replicated` take --tensors small matrices from fsdp2(--src) to tensor
parallelism over, or whole tensors on, --dst ranks.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hybridengine import _core

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
    spec: Any
    src: Callable[[], Any]
    dst: Callable[[], Any]


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


def make_case(args: argparse.Namespace) -> Case:
    if args.case == "moe":
        rows = moe_rows()
        spec = _core.Spec(rows)
        source = moe_source(spec, rows)
        rule = tp_rule(4, 4)
        return Case(spec, lambda: source, lambda: _core.bind(rule, spec))
    names = [f"model.layers.{i // 10}.block.{i % 10}.weight" for i in range(args.tensors)]
    spec = _core.Spec([(name, (240, 64), "bfloat16") for name in names])
    src = plain_rule("fsdp2", args.src, [_core.Cut(0, 0, "chunk")])
    cuts = [_core.Cut(1, 0, "even")] if args.case == "fsdp-tp" else []
    dst = plain_rule(args.case.removeprefix("fsdp-"), args.dst, cuts)
    return Case(spec, lambda: _core.bind(src, spec), lambda: _core.bind(dst, spec))


def timed(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    began = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=["moe", "fsdp-tp", "fsdp-replicated"], default="moe")
    parser.add_argument("--tensors", type=int, default=20_000, help="not for moe")
    parser.add_argument("--src", type=int, default=16, help="ranks of the source, not for moe")
    parser.add_argument("--dst", type=int, default=4, help="ranks that receive, not for moe")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    case = make_case(args)
    rows = []
    for _ in range(args.repeat):
        src, src_s = timed(case.src)
        dst, dst_s = timed(case.dst)
        plan, plan_s = timed(_core.make_plan, src, dst)
        schedule, schedule_s = timed(_core.make_schedule, plan)
        rows.append((src_s, dst_s, plan_s, schedule_s))
        counts = plan.num_moves, schedule.num_buckets
        check = plan.certificate.received_over_bound, plan.certificate.sender_max_over_mean
        del src, dst, plan, schedule
    print(f"{args.case}: {len(case.spec.tensors)} tensors, {counts[0]} moves, {counts[1]} buckets")
    print(f"received/bound {check[0]:.2f}, senders max/mean {check[1]:.3f}")
    print(f"{'':10}{'bind src':>10}{'bind dst':>10}{'plan':>10}{'schedule':>10}  ms")
    for name, pick in (("median", statistics.median), ("best", min)):
        print(f"{name:10}" + "".join(f"{pick(x) * 1e3:10.1f}" for x in zip(*rows, strict=True)))


if __name__ == "__main__":
    main()
