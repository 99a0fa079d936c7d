"""lora: low-rank adapters on a policy: all other weights are frozen, and only the adapters train.

The adapters are peft's, put into the model in place. The weights that generate are the frozen ones
plus B A alpha / rank; they are made from shards, and no whole weight is ever gathered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch import nn

from hybridengine._core import UsageError
from hybridengine.rlhf.config.roles import Lora
from hybridengine.rlhf.training.optimizer import local

_ADAPTER = "default"
_BASE = ".base_layer"  # what peft puts into the names of the weights below an adapter


def add_adapters(module: nn.Module, lora: Lora, seed: int) -> nn.Module:
    """Puts adapters into `module` (before it is sharded, with or without memory), freezes the rest,
    and returns it. The same on every rank for the same seed; B is 0, so that outputs do not change.

    Throws UsageError where no layer has one of the names in `lora.target_modules`.
    """
    from peft import LoraConfig, inject_adapter_in_model

    options = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules) or "all-linear",
    )
    module.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        try:
            inject_adapter_in_model(options, module, adapter_name=_ADAPTER)
        except ValueError:
            raise UsageError(
                f"actor.lora.target_modules={list(lora.target_modules)} names no linear layer of "
                f"{type(module).__name__}. Use names like q_proj, or leave it empty for all."
            ) from None
        torch.manual_seed(seed)
        for _, layer in _adapted(module):
            _draw(layer)
    return module.eval()


def _draw(layer: Any) -> None:
    """The numbers that peft draws when it makes the adapters of a layer, in float32: where the
    layer has no memory, they lost theirs."""
    adapters = (layer.lora_A[_ADAPTER], layer.lora_B[_ADAPTER])
    dtype = adapters[0].weight.dtype
    for each in adapters:
        each.to_empty(device="cpu").float().reset_parameters()
    layer.reset_lora_parameters(_ADAPTER, True)
    for each in adapters:
        each.to(dtype)


def plain_name(name: str) -> str:
    """Of a weight in the model without adapters."""
    return name.replace(_BASE, "")


def has_adapters(module: nn.Module) -> bool:
    return any(True for _ in _adapted(module))


@contextmanager
def without_adapters(module: nn.Module) -> Iterator[None]:
    """Inside, the model is the one below the adapters, for the reference; not for gradients."""
    layers = [layer for _, layer in _adapted(module)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@contextmanager
def adapter_dropout(module: nn.Module, seed: Sequence[int]) -> Iterator[None]:
    """Inside, the dropout before adapters is active. Everything else has none.

    What it drops follows from `seed` alone, e.g. (seed of the run, step, rank), so that a run that
    is resumed drops the same. Random numbers outside stay as they are.
    """
    dropouts = [layer.lora_dropout for _, layer in _adapted(module)]
    if not dropouts:
        yield
        return
    bits = numpy.random.SeedSequence(seed).generate_state(1, numpy.uint64)
    devices = {each.device for each in module.parameters() if each.is_cuda}
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(int(bits[0]))
        for dropout in dropouts:
            dropout.train()
        try:
            yield
        finally:
            for dropout in dropouts:
                dropout.eval()


@torch.no_grad()
def merged_tensors(
    module: nn.Module, out: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """The weights that generate, by the names of the model without adapters. Collective.

    Each is placed like the weight it comes from, so that a Resharder reads it as it reads the
    module; weights without an adapter are the module's own. `out`: what an earlier call returned,
    to be written anew in place.
    """
    adapted = {f"{name}{_BASE}.weight": layer for name, layer in _adapted(module)}
    merged: dict[str, torch.Tensor] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if ".lora_" in name:
            continue
        plain = plain_name(name)
        if name not in adapted:
            merged[plain] = tensor
            continue
        target = torch.empty_like(tensor.detach()) if out is None else out[plain]
        local(target).copy_(_merged(local(tensor), adapted[name]))
        merged[plain] = target
    return merged


@torch.no_grad()
def fold_adapters(module: nn.Module) -> None:
    """Writes what adapters have learned into the weights below them, and sets their B to 0: outputs
    stay as they are, up to rounding. Nothing happens without adapters. Collective."""
    for _, layer in _adapted(module):
        base = local(layer.base_layer.weight)
        base.copy_(_merged(base, layer))
        local(layer.lora_B[_ADAPTER].weight).zero_()


def _merged(base: torch.Tensor, layer: Any) -> torch.Tensor:
    """This rank's rows of base + B A alpha / rank, in float32 or more, so that writing them into a
    narrower type rounds once. Those of B are cut like those of the base."""
    first, second = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
    whole = first.full_tensor() if hasattr(first, "full_tensor") else first
    wide = torch.promote_types(base.dtype, torch.float32)
    rows = local(second).to(wide)
    update = rows @ whole.to(rows.device, wide)
    merged: torch.Tensor = base.to(wide) + update * layer.scaling[_ADAPTER]
    return merged


def _adapted(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Layers with an adapter, by name."""
    for name, layer in module.named_modules():
        if _ADAPTER in getattr(layer, "lora_A", ()):
            yield name, layer
