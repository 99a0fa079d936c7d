"""Qwen2 (q, k and v always have biases) and Qwen3 (normed queries and keys)."""

from __future__ import annotations

from hybridengine.layouts.mapping.decoder import (
    attention,
    embedding,
    gated_mlp,
    head,
    norms,
    output_bias,
    qk_norms,
    qkv_biases,
)
from hybridengine.layouts.mapping.mapping import Mapping

QWEN2 = Mapping(
    [
        *embedding(),
        *attention(),
        *qkv_biases(),
        *gated_mlp(),
        *norms("input_layernorm", "post_attention_layernorm"),
        *head(),
    ],
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
)

QWEN3 = Mapping(
    [
        *embedding(),
        *attention(),
        *qkv_biases("attention_bias"),
        *output_bias("attention_bias"),
        *qk_norms(),
        *gated_mlp(),
        *norms("input_layernorm", "post_attention_layernorm"),
        *head(),
    ],
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    head_dim=128,
)
