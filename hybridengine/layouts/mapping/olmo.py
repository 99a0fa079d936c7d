"""OLMo 2: norms behind attention and mlp, and queries and keys normed over all heads at once."""

from __future__ import annotations

from hybridengine.layouts.mapping.decoder import (
    attention,
    embedding,
    gated_mlp,
    head,
    norms,
    output_bias,
    qkv_biases,
)
from hybridengine.layouts.mapping.mapping import Mapping
from hybridengine.layouts.mapping.weight import Weight

# The norm needs the squares of all heads, so every tp rank holds all of it.
_NORMS_OF_ALL_HEADS = [
    Weight("model.layers.*.self_attn.q_norm.weight", ("heads*head_dim",)),
    Weight("model.layers.*.self_attn.k_norm.weight", ("kv_heads*head_dim",)),
]

OLMO2 = Mapping(
    [
        *embedding(),
        *attention(),
        *qkv_biases("attention_bias"),
        *output_bias("attention_bias"),
        *_NORMS_OF_ALL_HEADS,
        *gated_mlp(),
        *norms("post_attention_layernorm", "post_feedforward_layernorm"),
        *head(),
    ],
    architecture="Olmo2ForCausalLM",
    model_type="olmo2",
)
