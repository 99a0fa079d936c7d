"""Models of a few hundred weights whose values tell where they come from, and what layouts make of
them, cut in plain torch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from hybridengine import Spec
from hybridengine.mapping import get_mapping

Tensors = dict[str, torch.Tensor]

VOCAB_MULTIPLE = 64


def config(
    architecture: str = "Qwen2ForCausalLM",
    *,
    hidden: int = 8,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 2,
    intermediate: int = 6,
    layers: int = 1,
    vocab: int = 7,
    tie: bool = False,
    dtype: str = "float32",
) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": get_mapping(architecture).model_type,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "tie_word_embeddings": tie,
        "torch_dtype": dtype,
    }


def weights(spec: Spec, seed: int = 0) -> Tensors:
    """Every tensor of `spec`, with values of its own."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator).to(getattr(torch, dtype))
        for name, shape, dtype in spec.tensors
    }


def chunk(tensor: torch.Tensor, n: int, index: int) -> torch.Tensor:
    """FSDP2's part `index` of `n`: equal ones but for the last, the rest empty; scalars whole."""
    if tensor.dim() == 0:
        return tensor.clone()
    rows = math.ceil(tensor.shape[0] / n)
    return tensor[index * rows : (index + 1) * rows].clone()


def fsdp2(full: Tensors, n: int, index: int) -> Tensors:
    return {name: chunk(tensor, n, index) for name, tensor in full.items()}


def vllm(full: Tensors, facts: dict[str, Any], tp: int, rank: int) -> Tensors:
    """The tensors of one rank of vllm(tp=...): fused, kv heads shared, vocabulary padded."""
    cut: Tensors = {}
    kv_heads, head_dim = facts["num_key_value_heads"], facts["head_dim"]
    kv_ranks = min(tp, kv_heads)  # how many different parts the kv heads are cut into
    kv_rank = rank * kv_ranks // tp
    kv_rows = kv_heads // kv_ranks * head_dim

    def share(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return tensor.chunk(tp, dim)[rank].clone()

    for name, tensor in full.items():
        if ".q_proj." in name:
            parts = [share(tensor, 0)]
            for other in (".k_proj.", ".v_proj."):
                rows = full[name.replace(".q_proj.", other)]
                parts.append(rows[kv_rank * kv_rows : (kv_rank + 1) * kv_rows])
            cut[name.replace(".q_proj.", ".qkv_proj.")] = torch.cat(parts)
        elif ".gate_proj." in name:
            up = full[name.replace(".gate_proj.", ".up_proj.")]
            cut[name.replace(".gate_proj.", ".gate_up_proj.")] = torch.cat(
                [share(tensor, 0), share(up, 0)]
            )
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            cut[name] = share(tensor, 1)
        elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
            rows = math.ceil(tensor.shape[0] / VOCAB_MULTIPLE) * VOCAB_MULTIPLE
            padding = tensor.new_zeros(rows - tensor.shape[0], *tensor.shape[1:])
            cut[name] = share(torch.cat([tensor, padding]), 0)
        elif not any(part in name for part in (".k_proj.", ".v_proj.", ".up_proj.")):
            cut[name] = tensor.clone()
    return cut


def assert_same(found: Tensors, expected: Tensors) -> None:
    """Names, shapes, types and every bit."""
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        got = found[name]
        assert (tuple(got.shape), got.dtype) == (tuple(tensor.shape), tensor.dtype), name
        assert bits(got) == bits(tensor), name


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist())


def numbered(*shape: int, dtype: torch.dtype = torch.float32, start: int = 0) -> torch.Tensor:
    count = math.prod(shape)
    return torch.arange(start, start + count, dtype=dtype).reshape(shape)


def rows_of(starts: dict[int, int], columns: int, dtype: torch.dtype) -> torch.Tensor:
    """A matrix whose row values are `first, first + 1, ...` for each {first: count}."""
    values = list(itertools.chain.from_iterable(range(f, f + n) for f, n in starts.items()))
    return torch.tensor(values, dtype=dtype).unsqueeze(1).repeat(1, columns)
