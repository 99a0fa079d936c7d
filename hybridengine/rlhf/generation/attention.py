"""attention: how the slots of a cache attend: the masks, and a function for transformers' layers.

Rows are padded on the right and independent of each other. A prompt that enters attends to itself
alone; a token that is decoded attends to the first positions of its slot, up to its own. This
module knows neither slots nor requests, only positions.
"""

from __future__ import annotations

from typing import Any

import torch

from hybridengine._core import UsageError

# The name under which transformers finds `attend`; a model has it only while it generates.
IMPLEMENTATION = "hybridengine_slots"
FULL, SLIDING = "full_attention", "sliding_attention"

Masks = dict[str, torch.Tensor | None]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in place of its own SDPA: query [B, H, T, D], key and value
    [B, H_kv, L, D], mask [B or 1, 1, T, L] to be added; returns [B, T, H, D].

    For a single token the queries that share a kv head take the place of T, so that grouped heads
    need neither copies of keys and values nor a kernel that knows groups.
    """
    sdpa = torch.nn.functional.scaled_dot_product_attention
    batch, heads, length, size = query.shape
    kv_heads = key.shape[1]
    if length == 1:
        grouped = query.reshape(batch, kv_heads, heads // kv_heads, size)
        out = sdpa(grouped, key, value, attn_mask=attention_mask, scale=scaling)
        return out.reshape(batch, 1, heads, value.shape[-1]), None
    out = sdpa(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=attention_mask is None,
        scale=scaling,
        enable_gqa=heads != kv_heads,
    )
    return out.transpose(1, 2).contiguous(), None


def layer_kinds(config: Any) -> list[str]:
    """The kind of attention of each layer, as the model chooses its masks.

    Throws UsageError on a kind whose state is no cache of keys and values by position.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        sliding = getattr(config, "sliding_window", None) is not None
        return [SLIDING if sliding else FULL] * config.num_hidden_layers
    unknown = sorted(set(kinds) - {FULL, SLIDING})
    if unknown:
        raise UsageError(
            f"layers of {config.model_type} are of kind {', '.join(unknown)}. The built-in engine "
            f"runs {FULL} and {SLIDING}; generate with another engine."
        )
    return list(kinds)


def window_of(config: Any, kind: str) -> int | None:
    """How many positions a layer of `kind` sees, its own included; None: all."""
    return config.sliding_window if kind == SLIDING else None


def prompt_mask(
    width: int, window: int | None, like: torch.Tensor, explicit: bool
) -> torch.Tensor | None:
    """[1, 1, width, width] in the type of `like`, or None where `attend` needs none: plain causal
    attention, unless `explicit`."""
    if not explicit and (window is None or width <= window):
        return None
    place = torch.arange(width, device=like.device)
    return _additive(_visible(place[None, :], place[:, None], window), like)[None, None]


def token_mask(
    positions: torch.Tensor, length: int, window: int | None, like: torch.Tensor
) -> torch.Tensor:
    """[B, 1, 1, length] in the type of `like`: each row sees the positions up to its own."""
    place = torch.arange(length, device=like.device)
    return _additive(_visible(place[None, :], positions[:, None], window), like)[:, None, None]


def _visible(keys: torch.Tensor, queries: torch.Tensor, window: int | None) -> torch.Tensor:
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)


def _additive(visible: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    zero, hidden = like.new_zeros(()), like.new_full((), torch.finfo(like.dtype).min)
    return torch.where(visible, zero, hidden)
