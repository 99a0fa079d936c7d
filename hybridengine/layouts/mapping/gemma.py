"""Gemma, Gemma 2 (norms around the mlp too) and the text model of Gemma 3 (normed q and k).

All three tie the head to the embedding unless a config says otherwise, and head_dim does not follow
from the hidden size.
"""

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

_ATTENTION = [*attention(), *qkv_biases("attention_bias"), *output_bias("attention_bias")]
_FOUR_NORMS = norms(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)

GEMMA = Mapping(
    [
        *embedding(),
        *_ATTENTION,
        *gated_mlp(),
        *norms("input_layernorm", "post_attention_layernorm"),
        *head(),
    ],
    architecture="GemmaForCausalLM",
    model_type="gemma",
    tie=True,
    head_dim=256,
)

GEMMA2 = Mapping(
    [*embedding(), *_ATTENTION, *gated_mlp(), *_FOUR_NORMS, *head()],
    architecture="Gemma2ForCausalLM",
    model_type="gemma2",
    tie=True,
    head_dim=256,
)

GEMMA3 = Mapping(
    [*embedding(), *_ATTENTION, *qk_norms(), *gated_mlp(), *_FOUR_NORMS, *head()],
    architecture="Gemma3ForCausalLM",
    model_type="gemma3_text",
    tie=True,
    head_dim=256,
)
