"""A GGUF file of the llama family as the checkpoint it was made from: names, shapes, row order.

Reads with the optional package gguf. Quantised tensors come back as the numbers they stand for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridengine._core import UsageError

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

Array = npt.NDArray[np.float32]


class GgufFile:
    """An open file: its config and its tensors, one at a time."""

    def __init__(self, path: Path) -> None:
        """Throws UsageError without the package gguf, or on another architecture than llama."""
        try:
            import gguf
        except ImportError as error:
            raise UsageError(
                f"reading {path.name} needs the package gguf. Install it: pip install gguf."
            ) from error
        self._dequantize = gguf.quants.dequantize
        self._reader = gguf.GGUFReader(path)
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise UsageError(f"{path} holds a {architecture!r} model. Only llama is read.")

    def config(self) -> dict[str, Any]:
        """The content of the checkpoint's config.json."""
        hidden, heads = self._number("embedding_length"), self._number("attention.head_count")
        stored = {tensor.name for tensor in self._reader.tensors}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": hidden,
            "num_hidden_layers": self._number("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._number("attention.head_count_kv"),
            "head_dim": hidden // heads,
            "intermediate_size": self._number("feed_forward_length"),
            "vocab_size": self._number("vocab_size"),
            "max_position_embeddings": self._number("context_length"),
            "tie_word_embeddings": "output.weight" not in stored,
            "hidden_act": "silu",
            "rms_norm_eps": self._real("attention.layer_norm_rms_epsilon"),
            "rope_theta": self._real("rope.freq_base"),
            "bos_token_id": int(self.field("tokenizer.ggml.bos_token_id")),
            "eos_token_id": int(self.field("tokenizer.ggml.eos_token_id")),
            "pad_token_id": int(self.field("tokenizer.ggml.padding_token_id")),
        }

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """(checkpoint name, float32 values of the caller's own), in the order of the file."""
        heads = {
            "attn_q": self._number("attention.head_count"),
            "attn_k": self._number("attention.head_count_kv"),
        }
        for tensor in self._reader.tensors:
            part, name = checkpoint_name(tensor.name)
            values = self._dequantize(tensor.data, tensor.tensor_type)
            yield name, half_split_rows(values, heads[part]) if part in heads else values.copy()

    def field(self, key: str) -> Any:
        """What the file says under `key`. Throws UsageError where it says nothing."""
        field = self._reader.get_field(key)
        if field is None:
            raise UsageError(f"the GGUF file has no {key!r}. Use one made by llama.cpp.")
        return field.contents()

    def _number(self, key: str) -> int:
        return int(self.field(f"llama.{key}"))

    def _real(self, key: str) -> float:
        """The shortest number that is stored as this float32: 1e-05, not 9.999999747378752e-06."""
        return float(str(np.float32(self.field(f"llama.{key}"))))


def checkpoint_name(name: str) -> tuple[str, str]:
    """'blk.3.attn_q.weight' -> ('attn_q', 'model.layers.3.self_attn.q_proj.weight')."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _NAMES:
        raise UsageError(f"tensor {name!r} of the GGUF file is no weight of a llama model.")
    layer, part, kind = match.groups()
    prefix = "" if layer is None else f"model.layers.{layer}."
    return part, f"{prefix}{_NAMES[part]}.{kind}"


def half_split_rows(values: Array, heads: int) -> Array:
    """The rows of each head as (first half, second half); GGUF interleaves the two, for its rope
    turns neighbouring rows."""
    rows = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return rows.swapaxes(1, 2).copy().reshape(values.shape)
