"""ModelConfig: the numbers of a transformers config that decide which tensors a model has.

It is not a transformers config: no activation, no rope, nothing that only matters when running.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping as Dict
from dataclasses import asdict, dataclass, fields
from typing import Any

from hybridengine._core import UsageError

_REQUIRED = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
}


@dataclass(frozen=True)
class ModelConfig:
    architecture: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tie: bool = False  # lm_head shares the storage of the embedding
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "float32"

    def dim(self, text: str) -> int:
        """The size that a dim of a mapping stands for, e.g. 'kv_heads*head_dim' or '64'."""
        return math.prod(self._factor(word) for word in text.split("*"))

    def flag(self, text: str) -> bool:
        """Whether a condition of a mapping holds, e.g. 'attention_bias' or 'not tie'."""
        word = text.removeprefix("not ")
        return bool(getattr(self, word)) != (word != text)

    def save(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> ModelConfig:
        return cls(**json.loads(text))

    def _factor(self, word: str) -> int:
        return int(word) if word.isdigit() else int(getattr(self, word))


NUMBERS = tuple(field.name for field in fields(ModelConfig) if field.type == "int")
FLAGS = tuple(field.name for field in fields(ModelConfig) if field.type == "bool")


def read_config(
    raw: Dict[str, Any], architecture: str, *, tie: bool, head_dim: int | None, dtype: str | None
) -> ModelConfig:
    """A ModelConfig from the keys of a config.json.

    `tie` and `head_dim` are what the architecture means where its config is silent (None: hidden
    size over heads). Throws UsageError on a missing key or a number that is not positive.
    """
    numbers = {name: _positive(raw, key) for name, key in _REQUIRED.items()}
    heads = numbers["heads"]
    if raw.get("head_dim") is not None:
        head_dim = _positive(raw, "head_dim")
    elif head_dim is None:
        head_dim = _hidden_per_head(numbers["hidden"], heads)
    kv_heads = heads
    if raw.get("num_key_value_heads") is not None:
        kv_heads = _positive(raw, "num_key_value_heads")
    if heads % kv_heads:
        raise UsageError(
            f"kv heads do not divide the attention heads: num_attention_heads is {heads}, "
            f"num_key_value_heads {kv_heads}. Mend the config."
        )
    return ModelConfig(
        architecture=architecture,
        kv_heads=kv_heads,
        head_dim=head_dim,
        tie=_flag(raw, "tie_word_embeddings", tie),
        attention_bias=_flag(raw, "attention_bias", False),
        mlp_bias=_flag(raw, "mlp_bias", False),
        dtype=dtype if dtype is not None else _dtype(raw),
        **numbers,
    )


def _positive(raw: Dict[str, Any], key: str) -> int:
    value = raw.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        found = "is missing" if key not in raw else f"is {value!r}"
        raise UsageError(f"config key {key!r} {found}. It must be a whole number above zero.")
    return value


def _hidden_per_head(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise UsageError(
            f"hidden size does not divide by heads: {hidden} over {heads}. Set head_dim."
        )
    return hidden // heads


def _flag(raw: Dict[str, Any], key: str, silent: bool) -> bool:
    value = raw.get(key)
    return silent if value is None else bool(value)


def _dtype(raw: Dict[str, Any]) -> str:
    for key in ("dtype", "torch_dtype"):
        if raw.get(key) is not None:
            return str(raw[key]).removeprefix("torch.")
    return "float32"
