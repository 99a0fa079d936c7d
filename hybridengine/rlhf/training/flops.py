"""flops: how much an update computes, as the field counts it, and how much a rank could.

*Model FLOPs* are those that the formula of the model needs, whatever is computed anew or for
padding (Kaplan et al. 2020, section 2.1; Chowdhery et al. 2022, appendix B). A weight that
multiplies a token costs 2 forward, 2 backward for the input, and 2 for its own gradient unless it
is frozen. The head multiplies only the tokens that are predicted. Attention costs 4 for each
element of a head and each pair of a token with one that it sees, three times that with the backward
pass. Norms, activations and windows of attention are left out.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_TRIES = 3
_SIZES = {"cpu": 512, "cuda": 8192}  # of a square matrix: large enough to be near the best


@dataclass(frozen=True)
class UpdateCost:
    """Model FLOPs of one forward and backward pass."""

    per_token: float
    per_prediction: float
    per_pair: float

    @staticmethod
    def of(module: nn.Module) -> UpdateCost:
        """Of a causal language model, or one with a head of another kind; whole weights, also where
        they are sharded."""
        config: Any = module.config
        head = _head_of(module)
        body = prediction = 0.0
        for name, weight in module.named_parameters():
            if weight.dim() != 2 or (weight is not head and ".embed_tokens." in f".{name}"):
                continue
            cost = weight.numel() * (6.0 if weight.requires_grad else 4.0)
            body, prediction = (
                (body, prediction + cost) if weight is head else (body + cost, prediction)
            )
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return UpdateCost(body, prediction, 12.0 * config.num_hidden_layers * heads * head_dim)

    def flops(self, lengths: torch.Tensor, predictions: int) -> float:
        """`lengths`: tokens of each row; a token sees itself and those before it."""
        rows = lengths.double()
        pairs = float((rows * (rows + 1)).sum()) / 2
        tokens = float(rows.sum())
        return self.per_token * tokens + self.per_prediction * predictions + self.per_pair * pairs


@functools.cache
def measured_peak(device: torch.device, dtype: torch.dtype) -> float:
    """FLOPs a second of a product of large matrices on `device`: the best of a few, once in a
    process. On a CPU that is what this process gets of the cores that it shares."""
    size = _SIZES[device.type]
    matrix = torch.ones(size, size, dtype=dtype, device=device)
    return 2.0 * size**3 / min(_seconds(matrix) for _ in range(_TRIES))


def _seconds(matrix: torch.Tensor) -> float:
    began = time.perf_counter()
    product = matrix @ matrix
    product[0, 0].item()  # waits for it
    return time.perf_counter() - began


def _head_of(module: nn.Module) -> nn.Parameter | None:
    """The weight that makes logits, which is that of the embedding where they are tied."""
    made: Any = getattr(module, "get_output_embeddings", lambda: None)()
    return None if made is None else made.weight
