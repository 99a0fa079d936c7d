"""Presets: models known by a short name, as the numbers of their published configs.

Each is what the model's config.json on the Hugging Face hub says, less what only matters when
running. They give a spec, never weights.
"""

from __future__ import annotations

from typing import Any

_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
_QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
_MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
_GEMMA = {"architectures": ["GemmaForCausalLM"], "model_type": "gemma"}


def _config(
    base: dict[str, Any],
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocab: int,
    tie: bool,
    **more: Any,
) -> dict[str, Any]:
    return {
        **base,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "tie_word_embeddings": tie,
        "torch_dtype": "bfloat16",
        **more,
    }


PRESETS: dict[str, dict[str, Any]] = {
    # HuggingFaceTB/SmolLM2-135M-Instruct
    "smollm2-135m": _config(_LLAMA, 576, 30, 9, 3, 1536, 49152, True),
    # Qwen/Qwen2.5-0.5B
    "qwen2.5-0.5b": _config(_QWEN2, 896, 24, 14, 2, 4864, 151936, True),
    # Qwen/Qwen2.5-1.5B
    "qwen2.5-1.5b": _config(_QWEN2, 1536, 28, 12, 2, 8960, 151936, True),
    # Qwen/Qwen2.5-7B
    "qwen2.5-7b": _config(_QWEN2, 3584, 28, 28, 4, 18944, 152064, False),
    # meta-llama/Llama-3.2-1B
    "llama-3.2-1b": _config(_LLAMA, 2048, 16, 32, 8, 8192, 128256, True, head_dim=64),
    # meta-llama/Llama-3.1-8B
    "llama-3.1-8b": _config(_LLAMA, 4096, 32, 32, 8, 14336, 128256, False),
    # meta-llama/Llama-3.1-70B
    "llama-3.1-70b": _config(_LLAMA, 8192, 80, 64, 8, 28672, 128256, False),
    # Qwen/Qwen3-8B
    "qwen3-8b": _config(_QWEN3, 4096, 36, 32, 8, 12288, 151936, False, head_dim=128),
    # mistralai/Mistral-7B-v0.1
    "mistral-7b": _config(_MISTRAL, 4096, 32, 32, 8, 14336, 32000, False),
    # google/gemma-2b
    "gemma-2b": _config(_GEMMA, 2048, 18, 8, 1, 16384, 256000, True, head_dim=256),
}
