"""packing: rows run through a model without padding, each attending to itself alone.

Packed, the rows of a batch are one row [1, N] with positions that start anew. Everything but
attention treats tokens alone; attention takes queries, keys and values apart into [B, T] for as
long as it computes. So it is block-diagonal by construction, and no mask of N^2 is made. What
attention must know comes to it as the keyword argument `packed_rows` of the forward pass, which
survives recomputation in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hybridengine._core import UsageError
from hybridengine.rlhf.batch import Batch

ATTENTION = "hybridengine_packed"


@dataclass(frozen=True)
class PackedRows:
    """Where each token of a packed row lies in a flattened [num_rows, width]."""

    places: torch.Tensor  # int64 [N]
    num_rows: int
    width: int

    @staticmethod
    def of(batch: Batch, device: torch.device) -> PackedRows:
        width = int(batch.lengths.max())
        return PackedRows(batch.places(width).to(device), len(batch), width)

    def positions(self) -> torch.Tensor:
        """int64 [N]: of each token within its row."""
        return self.places % self.width

    def unpack(self, flat: torch.Tensor) -> torch.Tensor:
        """[N, ...] as [num_rows, width, ...], zeros on the right."""
        out = flat.new_zeros((self.num_rows * self.width, *flat.shape[1:]))
        out = out.index_copy(0, self.places, flat)
        return out.view(self.num_rows, self.width, *flat.shape[1:])

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """What `unpack` made a rectangle of."""
        return padded.flatten(0, 1)[self.places]


def can_pack(module: nn.Module) -> bool:
    """Whether all that mixes tokens in this model is attention that can be replaced."""
    supported = getattr(module, "_supports_attention_backend", False)
    return bool(supported) and not getattr(module, "_is_stateful", False)


def use_packed_attention(module: nn.Module) -> None:
    """From now on the HF model `module` runs packed rows, and only those."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, _packed_attention)
    AttentionMaskInterface.register(ATTENTION, _no_mask)
    module.set_attn_implementation(ATTENTION)  # type: ignore[operator]


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None


def _packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packed_rows: PackedRows | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention [1, H, N, D] -> [1, N, H, D], as transformers calls it.

    Keys and values may have fewer heads than queries.
    """
    if packed_rows is None:
        raise UsageError(
            "attention got no packed_rows: this model passes its keyword arguments not down, or "
            "was called directly. Set sequence_packing=false."
        )
    for name in ("softcap", "s_aux", "position_bias"):
        if others.get(name) is not None:
            raise UsageError(
                f"this model's attention needs {name}, which packed attention does not compute. "
                "Set sequence_packing=false."
            )
    rows = [
        packed_rows.unpack(each[0].transpose(0, 1)).transpose(1, 2) for each in (query, key, value)
    ]
    band = _band(packed_rows.width, sliding_window, query.device)
    attended = F.scaled_dot_product_attention(
        rows[0],
        rows[1],
        rows[2],
        attn_mask=band,
        is_causal=band is None,
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return packed_rows.pack(attended.transpose(1, 2))[None], None


def _band(width: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """bool [width, width] of a causal sliding window; None where all earlier tokens are seen."""
    if window is None or window >= width:
        return None
    at = torch.arange(width, device=device)
    distance = at[:, None] - at[None]
    return (distance >= 0) & (distance < window)
