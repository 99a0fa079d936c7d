"""load_weights: parameters point at the given tensors, or nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from generation_models import make_model

from hybridengine import UsageError
from hybridengine.rlhf.generation import load_weights

pytestmark = pytest.mark.python


def tensors_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: torch.randn_like(p).detach() for name, p in model.named_parameters()}


def test_parameters_share_the_memory_of_the_tensors() -> None:
    model = make_model()
    parameters = dict(model.named_parameters())
    tensors = tensors_of(model)
    load_weights(model, tensors)
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
        assert parameter.data_ptr() == tensors[name].data_ptr()
        assert torch.equal(parameter, tensors[name])


def test_tied_weights_are_one() -> None:
    model = make_model(tie=True)
    tensors = tensors_of(model)
    assert "lm_head.weight" not in tensors
    load_weights(model, tensors)
    table = tensors["model.embed_tokens.weight"]
    assert model.lm_head.weight.data_ptr() == table.data_ptr()
    load_weights(model, {**tensors, "lm_head.weight": table})
    with pytest.raises(UsageError, match=r"embed_tokens.*'lm_head.weight' are one weight"):
        load_weights(model, {**tensors, "lm_head.weight": table.clone()})
    other = tensors_of(model)
    load_weights(model, {**other, "lm_head.weight": other["model.embed_tokens.weight"]})
    moved = {name: tensor for name, tensor in tensors.items() if "embed" not in name}
    load_weights(model, {**moved, "lm_head.weight": table})
    assert model.model.embed_tokens.weight.data_ptr() == table.data_ptr()


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    model = make_model()
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    tensors = tensors_of(model)
    norm = "model.norm.weight"
    some = {name: tensor for name, tensor in tensors.items() if name != norm}
    for given, words in (
        ({**some, "extra": tensors[norm]}, f"missing: '{norm}'; unexpected: 'extra'"),
        ({}, r"missing: 'model\.embed_tokens\.weight',.* and \d+ more"),
        ({**some, norm: torch.zeros(3, dtype=torch.float64)}, rf"'{norm}'.*\[3\] float64 on cpu"),
        ({**some, norm: tensors[norm].float()}, r"\[16\] float32.*is \[16\] float64 on cpu"),
        ({**some, norm: tensors[norm].to("meta")}, "on meta"),
    ):
        with pytest.raises(UsageError, match=words):
            load_weights(model, given)
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == before
