"""Models that exist only as shapes, and the layouts between which they are planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hybridengine import _core

Rows = list[tuple[str, tuple[int, ...], str]]


@dataclass(frozen=True)
class Case:
    """`src` and `dst` bind a side; `src` is None where that side is laid out by hand."""

    spec: Any
    src: Callable[[], Any]
    dst: Callable[[], Any]
    src_is_bound: bool = True


# Shaped like Qwen3-30B-A3B: 18 867 tensors, two pipeline stages of 8 ranks.
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

# Shaped like DeepSeek-V3: 671 B elements in 45 416 tensors, 16 pipeline stages of 32 ranks. Its
# first layers have no experts.
BIG_LAYERS, BIG_DENSE_LAYERS, BIG_EXPERTS, BIG_HIDDEN, BIG_EXPERT_SIZE, BIG_VOCAB = (
    61,
    3,
    256,
    7168,
    2048,
    129280,
)
BIG_STAGES, BIG_STAGE_RANKS = 16, 32


def moe_rows() -> Rows:
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


def big_moe_rows() -> Rows:
    """An expert comes before its layer in a name, so that a rule can spread experts over an axis:
    the first number of a name is what counts there."""
    hidden, size = BIG_HIDDEN, BIG_EXPERT_SIZE
    rows: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (BIG_VOCAB, hidden))]
    for layer in range(BIG_LAYERS):
        at = f"model.layers.{layer}"
        rows += [
            (f"{at}.self_attn.q_a_proj.weight", (1536, hidden)),
            (f"{at}.self_attn.q_a_layernorm.weight", (1536,)),
            (f"{at}.self_attn.q_b_proj.weight", (24576, 1536)),
            (f"{at}.self_attn.kv_a_proj_with_mqa.weight", (576, hidden)),
            (f"{at}.self_attn.kv_a_layernorm.weight", (512,)),
            (f"{at}.self_attn.kv_b_proj.weight", (32768, 512)),
            (f"{at}.self_attn.o_proj.weight", (hidden, 16384)),
            (f"{at}.input_layernorm.weight", (hidden,)),
            (f"{at}.post_attention_layernorm.weight", (hidden,)),
        ]
        if layer < BIG_DENSE_LAYERS:
            rows += mlp_rows(f"{at}.mlp", 18432, hidden)
            continue
        rows += [(f"{at}.mlp.gate.weight", (BIG_EXPERTS, hidden))]
        rows += mlp_rows(f"{at}.mlp.shared_experts", size, hidden)
        for expert in range(BIG_EXPERTS):
            rows += mlp_rows(f"model.experts.{expert}.layers.{layer}", size, hidden)
    rows += [("model.norm.weight", (hidden,)), ("lm_head.weight", (BIG_VOCAB, hidden))]
    return [(name, shape, "bfloat16") for name, shape in rows]


def mlp_rows(at: str, size: int, hidden: int) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (f"{at}.gate_proj.weight", (size, hidden)),
        (f"{at}.up_proj.weight", (size, hidden)),
        (f"{at}.down_proj.weight", (hidden, size)),
    ]


def holders(name: str, layers: int, experts: int, stages: int, stage_ranks: int) -> list[int]:
    """The ranks of the source that hold a tensor: all of its stage, or the one of its expert."""
    parts = name.split(".")
    if "layers" not in parts:
        stage = 0 if "embed" in name else stages - 1
    else:
        stage = int(parts[parts.index("layers") + 1]) * stages // layers
    first = stage * stage_ranks
    if "experts" in parts:
        expert = int(parts[parts.index("experts") + 1])
        return [first + expert * stage_ranks // experts]
    return list(range(first, first + stage_ranks))


def staged_source(spec: Any, rows: Rows, *sizes: int) -> Any:
    """Laid out by hand. `sizes`: layers, experts, stages, ranks of a stage."""
    locals_, pieces = [], []
    for name, shape, dtype in rows:
        strides = (shape[1], 1) if len(shape) == 2 else (1,)
        for rank in holders(name, *sizes):
            locals_.append((rank, name, shape, dtype))
            pieces.append((name, rank, name, (0,) * len(shape), shape, 0, strides))
    ranks = list(range(sizes[2] * sizes[3]))
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
    source = staged_source(spec, rows, LAYERS, EXPERTS, STAGES, STAGE_RANKS)
    rule = tp_rule(4, 4)
    return Case(spec, lambda: source, lambda: _core.bind(rule, spec), src_is_bound=False)


def big_moe_case() -> Case:
    """To one expert of each layer on each of 256 ranks, and the rest whole on all of them."""
    rows = big_moe_rows()
    spec = _core.Spec(rows)
    source = staged_source(spec, rows, BIG_LAYERS, BIG_EXPERTS, BIG_STAGES, BIG_STAGE_RANKS)
    rules = [
        _core.TensorRule(f"model.experts.*.layers.*.{x}_proj.weight", layer_axis=0)
        for x in ("gate", "up", "down")
    ]
    mesh = _core.Mesh([("expert", BIG_EXPERTS)], list(range(BIG_EXPERTS)))
    rules.append(_core.TensorRule("**"))
    rule = _core.LayoutRule(f"experts({BIG_EXPERTS})", mesh, rules, [1] * BIG_EXPERTS)
    return Case(spec, lambda: source, lambda: _core.bind(rule, spec), src_is_bound=False)


def llama_case(ranks: int) -> Case:
    """llama-3.1-70b from the shards of a trainer to 32 engines of 8 ranks."""
    from hybridengine.layouts.layout import LayoutRule
    from hybridengine.layouts.spec import Spec
    from hybridengine.models.presets import PRESETS

    spec = Spec.from_config(PRESETS["llama-3.1-70b"])
    src, dst = LayoutRule.parse(f"fsdp2({ranks})"), LayoutRule.parse("vllm(tp=8,dp=32)")
    return Case(spec.core, lambda: src.bind(spec).core, lambda: dst.bind(spec).core)


def matrices_case(count: int, dst_cuts: list[Any]) -> Case:
    """`count` matrices from 16 chunks to 4 ranks."""
    names = [f"model.layers.{i // 10}.block.{i % 10}.weight" for i in range(count)]
    spec = _core.Spec([(name, (240, 64), "bfloat16") for name in names])
    src = plain_rule("fsdp2", 16, [_core.Cut(0, 0, "chunk")])
    dst = plain_rule("tp" if dst_cuts else "replicated", 4, dst_cuts)
    return Case(spec, lambda: _core.bind(src, spec), lambda: _core.bind(dst, spec))


CASES: dict[str, Callable[[], Case]] = {
    "fsdp-tp-10k": lambda: matrices_case(10_000, [_core.Cut(1, 0, "even")]),
    "fsdp-replicated-10k": lambda: matrices_case(10_000, []),
    "moe": moe_case,
    "moe-671b": big_moe_case,
    "llama-70b-256": lambda: llama_case(256),
    "llama-70b-512": lambda: llama_case(512),
    "fsdp-tp-100k": lambda: matrices_case(100_000, [_core.Cut(1, 0, "even")]),
}
