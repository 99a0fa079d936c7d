"""The weights that adapters come to: one rounding of the sum, and a base that never moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rlhf_local_roles
import torch
from peft import LoraConfig, inject_adapter_in_model
from rlhf_small_run import SMALL

from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.roles.policy import ActorRole
from hybridengine.rlhf.roles.rollout import RolloutRole
from hybridengine.rlhf.training.export import export_hf
from hybridengine.rlhf.training.lora import merged_tensors
from hybridengine.rlhf.training.optimizer import local

pytestmark = pytest.mark.python

_SYNCS = 100


def adapted(base: torch.Tensor, update: torch.Tensor, dtype: torch.dtype) -> torch.nn.Module:
    """A linear layer with the weights `base`, whose adapter in `dtype` is A = 1 and B = `update`,
    scaled by 1."""
    layer = torch.nn.Linear(*reversed(base.shape), bias=False, dtype=base.dtype)
    model = torch.nn.ModuleDict({"layer": layer})
    size = base.shape[1]
    inject_adapter_in_model(LoraConfig(r=size, lora_alpha=size, target_modules=["layer"]), model)
    wrapped: Any = model["layer"]
    with torch.no_grad():
        wrapped.base_layer.weight.copy_(base)
        wrapped.lora_A["default"].weight = torch.nn.Parameter(torch.eye(size, dtype=dtype))
        wrapped.lora_B["default"].weight = torch.nn.Parameter(update.to(dtype))
    return model


@pytest.mark.parametrize("adapters", [torch.float32, torch.bfloat16])
def test_bfloat16_weights_are_rounded_once(adapters: torch.dtype) -> None:
    torch.manual_seed(0)
    base = (torch.randn(64, 64) * 0.02).to(torch.bfloat16)
    update = (torch.randn(64, 64) * 0.002).to(adapters)
    merged = merged_tensors(adapted(base, update, adapters))["layer.weight"]
    expected = (base.float() + update.float()).to(torch.bfloat16)
    assert merged.equal(expected)
    assert (merged != base).sum() > 1000  # the update does move weights


def test_the_product_of_narrow_adapters_is_not_rounded_before_the_sum() -> None:
    torch.manual_seed(0)
    base = (torch.randn(64, 64) * 0.02).to(torch.bfloat16)
    model = adapted(base, torch.zeros(64, 64), torch.bfloat16)
    layer: Any = model["layer"]
    first, second = (torch.randn(64, 64).mul(0.02).to(torch.bfloat16) for _ in range(2))
    layer.lora_A["default"].weight.data, layer.lora_B["default"].weight.data = first, second
    merged = merged_tensors(model)["layer.weight"]
    assert merged.equal((base.float() + second.float() @ first.float()).to(torch.bfloat16))


def test_the_base_stays_as_it_is_however_often_weights_are_merged() -> None:
    """Added to the base and taken off again, 0.003 leaves 0.99609375 of 1."""
    one = torch.ones(1, 1, dtype=torch.bfloat16)
    model = adapted(one, torch.full((1, 1), 0.003), torch.float32)
    base = model["layer"].base_layer.weight  # type: ignore[union-attr]
    merged = merged_tensors(model)
    for _ in range(_SYNCS):
        merged_tensors(model, merged)
        assert merged["layer.weight"].item() == 1.0  # 1.003 lies nearer to 1 than to 1.0078125
        assert base.item() == 1.0  # type: ignore[union-attr,operator]
    torch.manual_seed(0)
    weights = (torch.randn(64, 64) * 0.02).to(torch.bfloat16)
    model = adapted(weights, torch.randn(64, 64) * 0.002, torch.float32)
    merged = merged_tensors(model)
    for _ in range(_SYNCS):
        merged_tensors(model, merged)
    assert model["layer"].base_layer.weight.equal(weights)  # type: ignore[union-attr,operator]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_generates_and_what_is_exported_is_rounded_once(tmp_path: Path, dtype: str) -> None:
    from safetensors.torch import load_file

    types = ["actor.dtype=float32", f"rollout.dtype={dtype}"]
    adapters = [f"actor.lora.{key}" for key in ("enable=true", "rank=4", "alpha=12")]
    config = load_config([*SMALL, "trainer.ranks=1", "warmup.steps=0", *types, *adapters])
    with rlhf_local_roles.one_rank(tmp_path) as context:
        actor = context.roles["actor"] = ActorRole(context, config)
        rollout = context.roles["rollout"] = RolloutRole(context, config)
        rollout.connect(None)
        torch.manual_seed(0)
        for name, weight in actor.backend.module.named_parameters():
            if ".lora_B" in name:
                local(weight).data.normal_(0, 0.02)
        before = base_weights(actor)
        for _ in range(_SYNCS):
            rollout.sync(1)
        assert all(weight.equal(before[name]) for name, weight in base_weights(actor).items())
        export_hf(actor.backend.module, None, tmp_path / "hf")
        found = rollout.weights
        exported = load_file(tmp_path / "hf" / "model.safetensors")
        wide = expected_weights(actor)
    assert wide
    for name, weight in wide.items():
        assert exported[name].equal(weight), name
        assert found[name].equal(weight.to(getattr(torch, dtype))), name


def base_weights(actor: Any) -> dict[str, torch.Tensor]:
    return {
        name: weight.full_tensor().clone()
        for name, weight in actor.backend.module.named_parameters()
        if ".base_layer." in name
    }


def expected_weights(actor: Any) -> dict[str, torch.Tensor]:
    """base + 3 B A in float32, by the names of the model without adapters."""
    whole = {name: weight.full_tensor() for name, weight in actor.backend.module.named_parameters()}
    layers = [
        n.removesuffix(".base_layer.weight") for n in whole if n.endswith(".base_layer.weight")
    ]
    return {
        f"{layer}.weight": whole[f"{layer}.base_layer.weight"]
        + whole[f"{layer}.lora_B.default.weight"] @ whole[f"{layer}.lora_A.default.weight"] * 3.0
        for layer in layers
    }
