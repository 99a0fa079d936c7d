"""wire: how tensors travel in Ray's messages and lie in its object store.

Ray's own way copies a tensor's whole storage through a stream. Here only the tensor's bytes travel,
beside the message, and are copied once where they arrive: the store's memory is read-only, and
torch would not know. They arrive on the CPU, without gradient and without shared storage.
"""

from __future__ import annotations

from typing import Any

import ray.util
import torch

from hybridengine._core import UsageError


def register() -> None:
    """For this process, once Ray is connected. Both ends of a message need it."""
    ray.util.register_serializer(torch.Tensor, serializer=_encode, deserializer=_decode)


def _encode(tensor: torch.Tensor) -> tuple[Any, torch.dtype, tuple[int, ...]]:
    if tensor.layout != torch.strided:
        raise UsageError(
            f"a tensor of shape {list(tensor.shape)} has layout {tensor.layout}. Send strided ones."
        )
    plain = tensor.detach().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape)


def _decode(encoded: tuple[Any, torch.dtype, tuple[int, ...]]) -> torch.Tensor:
    data, dtype, shape = encoded
    tensor = torch.empty(shape, dtype=dtype)
    tensor.view(-1).view(torch.uint8).numpy()[:] = data
    return tensor
