"""A small checkpoint with awkward sizes, for tests that reshard real files."""

import json

import numpy as np

from hybridengine.checkpoint import write_bfloat16
from hybridengine.layouts.spec import Spec

# Cut like SmolLM2 (nine heads, three kv heads), with odd sizes and a padded vocabulary.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 36,
    "intermediate_size": 33,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 190,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def write_config(directory) -> str:
    """Writes a HF directory with shapes only."""
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return str(directory)


def write_checkpoint(directory) -> str:
    """Writes a HF directory whose weights are random bits: NaN and infinity are among them."""
    write_config(directory)
    bits = np.random.default_rng(0)
    tensors = {
        name: bits.integers(0, 1 << 16, shape, dtype=np.uint16)
        for name, shape, _ in Spec.from_config(CONFIG).tensors
    }
    write_bfloat16(directory / "model.safetensors", tensors)
    return str(directory)


def reshard_arguments(model: str, src: str, dst: str, *more: str) -> list[str]:
    """The command line of a reshard."""
    return ["reshard", "--model", model, "--src", src, "--dst", dst, *more]
