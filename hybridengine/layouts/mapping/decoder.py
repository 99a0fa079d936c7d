"""Rows that most decoders have in common, under the names that checkpoints and vLLM give them.

vLLM cuts the bias of a column-parallel weight with it and keeps that of a row-parallel one whole.
"""

from __future__ import annotations

from hybridengine.layouts.mapping.weight import Weight, column, row

_LAYER = "model.layers.*."
_QUERY = column("heads")
_KEY_VALUE = column("kv_heads", shared=True)


def embedding() -> list[Weight]:
    return [
        Weight("model.embed_tokens.weight", ("vocab", "hidden"), column("vocab"), stage="first")
    ]


def head() -> list[Weight]:
    """The final norm and the head, which is the embedding itself where the config ties them."""
    return [
        Weight("model.norm.weight", ("hidden",), stage="last"),
        Weight(
            "lm_head.weight", ("vocab", "hidden"), column("vocab"), when="not tie", stage="last"
        ),
    ]


def norms(*names: str) -> list[Weight]:
    """Norms of the hidden size, one per layer and name."""
    return [Weight(f"{_LAYER}{name}.weight", ("hidden",)) for name in names]


def attention() -> list[Weight]:
    """q, k, v, fused in this order, and the output projection. No biases: see below."""
    at, fused = f"{_LAYER}self_attn.", f"{_LAYER}self_attn.qkv_proj.weight"
    query, key_value = ("heads*head_dim", "hidden"), ("kv_heads*head_dim", "hidden")
    return [
        Weight(f"{at}q_proj.weight", query, _QUERY, (fused, 0)),
        Weight(f"{at}k_proj.weight", key_value, _KEY_VALUE, (fused, 1)),
        Weight(f"{at}v_proj.weight", key_value, _KEY_VALUE, (fused, 2)),
        Weight(f"{at}o_proj.weight", ("hidden", "heads*head_dim"), row("heads")),
    ]


def qkv_biases(when: str = "") -> list[Weight]:
    at, fused = f"{_LAYER}self_attn.", f"{_LAYER}self_attn.qkv_proj.bias"
    return [
        Weight(f"{at}q_proj.bias", ("heads*head_dim",), _QUERY, (fused, 0), when),
        Weight(f"{at}k_proj.bias", ("kv_heads*head_dim",), _KEY_VALUE, (fused, 1), when),
        Weight(f"{at}v_proj.bias", ("kv_heads*head_dim",), _KEY_VALUE, (fused, 2), when),
    ]


def output_bias(when: str) -> list[Weight]:
    return [Weight(f"{_LAYER}self_attn.o_proj.bias", ("hidden",), when=when)]


def qk_norms() -> list[Weight]:
    """One vector of head_dim for all heads, so every tp rank holds all of it."""
    names = ("q_norm", "k_norm")
    return [Weight(f"{_LAYER}self_attn.{name}.weight", ("head_dim",)) for name in names]


def gated_mlp() -> list[Weight]:
    """gate and up, fused in this order, and down."""
    at, fused = f"{_LAYER}mlp.", f"{_LAYER}mlp.gate_up_proj.weight"
    shape, cut = ("intermediate", "hidden"), column("intermediate")
    return [
        Weight(f"{at}gate_proj.weight", shape, cut, (fused, 0)),
        Weight(f"{at}up_proj.weight", shape, cut, (fused, 1)),
        Weight(f"{at}down_proj.weight", ("hidden", "intermediate"), row("intermediate")),
    ]


def mlp_biases(when: str) -> list[Weight]:
    at, fused = f"{_LAYER}mlp.", f"{_LAYER}mlp.gate_up_proj.bias"
    cut = column("intermediate")
    return [
        Weight(f"{at}gate_proj.bias", ("intermediate",), cut, (fused, 0), when),
        Weight(f"{at}up_proj.bias", ("intermediate",), cut, (fused, 1), when),
        Weight(f"{at}down_proj.bias", ("hidden",), when=when),
    ]
