"""What an update computes, against torch's own counter, and how it is told."""

from __future__ import annotations

import pytest
import torch
from rlhf_training_scenarios import LENGTHS, config, make, rollouts, update
from torch.utils.flop_counter import FlopCounterMode

from hybridengine.rlhf.config.roles import Lora
from hybridengine.rlhf.training import lora
from hybridengine.rlhf.training.flops import UpdateCost, measured_peak

pytestmark = pytest.mark.python

_LENGTH = 9


def _counted(module: torch.nn.Module) -> float:
    """FLOPs of the matrix products of one row, whose attention computes all pairs."""
    ids = torch.arange(_LENGTH)[None] % 23
    with FlopCounterMode(display=False) as counter:
        module(input_ids=ids, use_cache=False).logits.double().sum().backward()
    return float(counter.get_total_flops())


def _expected(module: torch.nn.Module) -> float:
    cost = UpdateCost.of(module)
    return (cost.per_token + cost.per_prediction) * _LENGTH + cost.per_pair * _LENGTH**2


@pytest.mark.parametrize("tied", [True, False])
def test_the_formula_is_what_torch_counts(tied: bool) -> None:
    module = make(tie_word_embeddings=tied)
    module.set_attn_implementation("eager")
    assert _expected(module) == _counted(module)
    cost = UpdateCost.of(module)
    assert cost.per_prediction == 6 * 23 * 20
    assert cost.per_pair == 12 * 2 * 4 * 6


def test_frozen_weights_have_no_gradient_of_their_own() -> None:
    """The first layer's input needs no gradient either where the embedding is frozen; the formula
    counts it, as the field does."""
    module = lora.add_adapters(make(), Lora(rank=3, alpha=6.0), seed=2)
    module.set_attn_implementation("eager")
    expected, counted = _expected(module), _counted(module)
    assert counted < expected < 1.2 * counted


def test_rows_are_causal_and_the_head_sees_what_is_predicted() -> None:
    cost = UpdateCost(per_token=10.0, per_prediction=100.0, per_pair=1000.0)
    lengths = torch.tensor([1, 3, 0])
    assert cost.flops(lengths, predictions=2) == 4 * 10 + 2 * 100 + (1 + 6) * 1000
    assert cost.flops(torch.tensor([], dtype=torch.int64), 0) == 0


def test_an_update_tells_its_work() -> None:
    batch, made = rollouts(), config(ppo_epochs=2)
    metrics, _ = update(made, batch)
    cost = UpdateCost.of(make())
    once = cost.flops(batch.lengths, int(batch["mask"].sum()))
    assert metrics["flops"] == pytest.approx(2 * once)
    assert metrics["processed"] == 2 * sum(LENGTHS)


def test_the_peak_is_a_rate_and_measured_once() -> None:
    found = measured_peak(torch.device("cpu"), torch.float32)
    assert 1e6 < found < 1e15
    assert measured_peak(torch.device("cpu"), torch.float32) == found
