"""Llama and Mistral: the plain decoder."""

from __future__ import annotations

from hybridengine.layouts.mapping.decoder import (
    attention,
    embedding,
    gated_mlp,
    head,
    mlp_biases,
    norms,
    output_bias,
    qkv_biases,
)
from hybridengine.layouts.mapping.mapping import Mapping

LLAMA = Mapping(
    [
        *embedding(),
        *attention(),
        *qkv_biases("attention_bias"),
        *output_bias("attention_bias"),
        *gated_mlp(),
        *mlp_biases("mlp_bias"),
        *norms("input_layernorm", "post_attention_layernorm"),
        *head(),
    ],
    architecture="LlamaForCausalLM",
    model_type="llama",
)

MISTRAL = Mapping(
    [
        *embedding(),
        *attention(),
        *gated_mlp(),
        *norms("input_layernorm", "post_attention_layernorm"),
        *head(),
    ],
    architecture="MistralForCausalLM",
    model_type="mistral",
)
