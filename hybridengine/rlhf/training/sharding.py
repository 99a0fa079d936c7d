"""sharding: a whole model into FSDP2 shards, one decoder layer at a time.

Every weight is cut along dim 0 over the ranks of the mesh, as the layout `fsdp2(n)` says, so that a
Resharder reads the shards where they lie.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.utils.checkpoint import checkpoint

from hybridengine._core import UsageError
from hybridengine.rlhf.config.roles import Sharding
from hybridengine.rlhf.training.models import strategy_of, weight_dtype


def shard(module: nn.Module, sharding: Sharding, mesh: DeviceMesh) -> nn.Module:
    """Shards `module` in place over the one-dim `mesh`, on its device, and returns it. Collective.

    All ranks pass the same weights, or weights without memory, as empty_model makes them. They keep
    their type, activations have that of `sharding.dtype`, gradients are reduced in float32 or more.
    Adapters are added before. Throws UsageError on a model that FSDP2 does not train, see
    strategy_of.
    """
    strategy_of(sharding, sum(parameter.numel() for parameter in module.parameters()))
    layers = decoder_layers(module)
    for layer in layers:
        _wrap_forward(layer, sharding)
    activations = getattr(torch, sharding.dtype)
    wide = weight_dtype(sharding)
    offload = home(sharding, torch.device(mesh.device_type)).type != mesh.device_type
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=activations, reduce_dtype=wide),
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
    }
    for layer in layers:
        # Small layers stay in the root's unit: a unit costs three collectives a pass.
        if sum(weight.numel() for weight in layer.parameters()) >= sharding.min_num_params:
            fully_shard(layer, **options)
    fully_shard(module, **options)
    return module


def home(sharding: Sharding, device: torch.device) -> torch.device:
    """Where the shards lie between passes."""
    return torch.device("cpu") if sharding.param_offload else device


def decoder_layers(module: nn.Module) -> list[nn.Module]:
    """The blocks that the model's class names as such, else the longest list of modules.

    Throws UsageError where there is neither.
    """
    names = set(getattr(module, "_no_split_modules", None) or ())
    layers = [each for each in module.modules() if type(each).__name__ in names]
    if not layers:
        lists = [list(each) for each in module.modules() if isinstance(each, nn.ModuleList)]
        layers = max(lists, key=len, default=[])
    if not layers:
        raise UsageError(
            f"{type(module).__name__} has no decoder layers: no list of modules. Use a "
            "transformer model."
        )
    return layers


def set_gradient_sync(module: nn.Module, sync: bool) -> None:
    """Whether the next backward pass reduces gradients over the ranks, with those kept so far."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(sync)


def free_whole_weights(module: nn.Module) -> None:
    """Frees what a forward pass without a backward pass leaves gathered; shards stay."""
    if isinstance(module, FSDPModule):
        module.reshard()


def _wrap_forward(layer: nn.Module, sharding: Sharding) -> None:
    """In place, so that no name changes; inside of what FSDP2 does around the layer."""
    forward = layer.forward
    if sharding.compile:
        forward = torch.compile(forward, dynamic=True)
    if sharding.activation_checkpointing:
        forward = functools.partial(checkpoint, forward, use_reentrant=False)
    if forward is not layer.forward:
        layer.forward = forward
