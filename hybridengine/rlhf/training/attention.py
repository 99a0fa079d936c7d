"""attention: which one runs packed rows, and our own, for CPUs.

On a GPU transformers' kernels for rows of unequal length run them: flash attention, where it is
installed and takes the type, else flex attention. Both find the rows by positions that start anew.
Elsewhere torch's SDPA runs the buckets of packing.py. `Passes` chooses, once for a model, and
forward.py hands the arguments over; they are keyword arguments of the forward pass, which survive
recomputation in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hybridengine._core import UsageError
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.training.packing import Bucket, PackedRows

PACKED, FLASH, FLEX = "hybridengine_packed", "flash_attention_2", "flex_attention"


def can_pack(module: nn.Module) -> bool:
    """Whether all that mixes tokens in this model is attention that can be replaced."""
    supported = getattr(module, "_supports_attention_backend", False)
    return bool(supported) and not getattr(module, "_is_stateful", False)


def use_packed_attention(module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """From now on the HF model `module`, which computes on `device` in `dtype`, runs packed rows,
    and only those."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PACKED, _packed_attention)
    AttentionMaskInterface.register(PACKED, _no_mask)
    module.set_attn_implementation(chosen(module, device, dtype))  # type: ignore[operator]


def chosen(module: nn.Module, device: torch.device, dtype: torch.dtype) -> str:
    """The name of the attention that runs packed rows, as transformers knows it."""
    from transformers.utils.import_utils import is_flash_attn_2_available

    half = dtype in (torch.bfloat16, torch.float16)
    if device.type != "cuda":
        return PACKED
    if half and getattr(module, "_supports_flash_attn", False) and is_flash_attn_2_available():
        return FLASH
    supported = getattr(module, "_supports_flex_attn", False)
    return FLEX if supported and dtype != torch.float64 else PACKED


def packed_arguments(module: Any, batch: Batch, device: torch.device) -> dict[str, Any]:
    """What the forward pass of `module` takes besides the ids of the packed `batch`."""
    positions = torch.arange(int(batch.lengths.sum())) - batch.first_tokens().repeat_interleave(
        batch.lengths
    )
    arguments: dict[str, Any] = {"position_ids": positions[None].to(device)}
    implementation = module.config.get_text_config()._attn_implementation
    if implementation == PACKED:
        arguments["packed_rows"] = PackedRows.of(batch, device)
    elif implementation == FLASH:  # without these it would look for the rows once a layer
        ends = F.pad(batch.lengths.cumsum(0), (1, 0)).to(device, torch.int32)
        longest = int(batch.lengths.max())
        arguments |= {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
        arguments |= {"max_length_q": longest, "max_length_k": longest}
    return arguments


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
    flat = [each[0].transpose(0, 1) for each in (query, key, value)]
    parts = [
        _attend(bucket, flat, scaling, dropout, sliding_window) for bucket in packed_rows.buckets
    ]
    return packed_rows.together(parts)[None], None


def _attend(
    bucket: Bucket,
    flat: list[torch.Tensor],
    scaling: float | None,
    dropout: float,
    sliding_window: int | None,
) -> torch.Tensor:
    """[n, H, D] for the tokens of a bucket; `flat`: queries, keys and values of all, [N, H, D]."""
    query, key, value = (bucket.unpack(each).transpose(1, 2) for each in flat)
    band = _band(bucket.width, sliding_window, query.device)
    attended = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=band,
        is_causal=band is None,
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return bucket.pack(attended.transpose(1, 2))


def _band(width: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """bool [width, width] of a causal sliding window; None where all earlier tokens are seen."""
    if window is None or window >= width:
        return None
    at = torch.arange(width, device=device)
    distance = at[:, None] - at[None]
    return (distance >= 0) & (distance < window)
