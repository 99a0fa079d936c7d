"""Passes: log-probs, entropy, values and scores, against one plain forward pass a row."""

from __future__ import annotations

import pytest
import rlhf_training_scenarios as scenarios
import torch
from rlhf_training_scenarios import TEMPERATURE, make, rollouts

from hybridengine import UsageError
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.roles import Critic, Sharding
from hybridengine.rlhf.training import forward, packing
from hybridengine.rlhf.training.passes import Passes

pytestmark = pytest.mark.python

CLOSE = {"rtol": 1e-6, "atol": 1e-7}  # norms and rotary positions are float32 inside of HF models

# Both ways to run rows, and families whose attention differs: heads, windows, no rotary positions.
FAMILIES = {
    "qwen2": {},
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
    "mistral": {"model_type": "mistral", "sliding_window": 3},
    "gpt2": {"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32},
}


def row_by_row(module, batch, attention="sdpa"):
    """Log-probs and entropy with gradient, one row at a time through the model's own forward pass.

    "eager" rounds to float32, but computes everything.
    """
    module.set_attn_implementation(attention)
    log_probs, entropies, start = [], [], 0
    for length in batch.lengths.tolist():
        ids = batch["ids"][start : start + length]
        mask = batch["mask"][start : start + length]
        logits = module(input_ids=ids[None]).logits[0, :-1].double() / TEMPERATURE
        plain = logits.log_softmax(-1)
        chosen = plain.gather(1, ids[1:, None])[:, 0]
        spread = -(plain.exp() * plain).sum(-1)
        zero = chosen.new_zeros(1)
        log_probs.append(torch.where(mask, torch.cat([zero, chosen]), 0))
        entropies.append(torch.where(mask, torch.cat([zero, spread]), 0))
        start += length
    return torch.cat(log_probs), torch.cat(entropies)


def gradients(module, number):
    module.zero_grad()
    number.backward()
    return {name: p.grad.clone() for name, p in module.named_parameters()}


def close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        error, size = (found[name] - value).abs().max(), value.abs().max()
        assert error <= 1e-6 * size, (name, error, size)


@pytest.mark.parametrize("way", ["packed", "in buckets", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_to_one_row_at_a_time(family, way, monkeypatch):
    monkeypatch.setattr(packing, "_CALL_PAIRS", 0 if way == "in buckets" else 1 << 20)
    batch = rollouts()
    buckets = packing.PackedRows.of(batch, torch.device("cpu")).buckets
    assert len(buckets) == (len(set(batch.lengths.tolist())) if way == "in buckets" else 1)
    module = make(**FAMILIES[family])
    coefficients = torch.randn(2, 36, generator=torch.Generator().manual_seed(3)).double()
    expected = row_by_row(module, batch)
    wanted = gradients(module, (torch.stack(expected) * coefficients).sum())

    sharding = Sharding(sequence_packing=way != "padded")
    passes = Passes(make(**FAMILIES[family]), sharding, TEMPERATURE)
    assert passes.packed == sharding.sequence_packing
    found = passes.log_probs_and_entropy(batch, "gradient")
    for got, value in zip(found, expected, strict=True):
        torch.testing.assert_close(got, value, **CLOSE)
    close(gradients(passes.module, (torch.stack(found) * coefficients).sum()), wanted)


def test_attention_with_what_packing_does_not_compute_is_refused():
    module = make(model_type="gemma2", attn_logit_softcapping=2.0, query_pre_attn_scalar=6)
    batch = rollouts()
    expected, _ = row_by_row(module, batch, "eager")
    padded = Passes(module, Sharding(dtype="float64", sequence_packing=False), TEMPERATURE)
    module.set_attn_implementation("eager")
    torch.testing.assert_close(padded.log_probs(batch), expected.detach(), **CLOSE)
    with pytest.raises(UsageError, match=r"needs softcap.*sequence_packing=false"):
        Passes(module, Sharding(), TEMPERATURE).log_probs(batch)


def test_chunks_of_logits_change_nothing(monkeypatch):
    batch = rollouts()
    whole = Passes(make(), Sharding(), TEMPERATURE)
    expected = whole.log_probs_and_entropy(batch, "gradient")
    wanted = gradients(whole.module, expected[0].sum() + expected[1].sum())
    monkeypatch.setattr(forward, "CHUNK_ELEMS", 4 * scenarios.VOCAB + 1)
    found = whole.log_probs_and_entropy(batch, "gradient")
    close(gradients(whole.module, found[0].sum() + found[1].sum()), wanted)
    torch.testing.assert_close(found[0], expected[0], **CLOSE)


@pytest.mark.parametrize("budget", [9, 12, 1000])
@pytest.mark.parametrize("rows", ["mini-batches", "none given"])
def test_micro_batches_return_to_their_places(budget, rows):
    batch = rollouts()
    if rows == "none given":
        batch = batch.keep("ids", "mask")
    sharding = Sharding(dtype="float64", max_tokens_per_gpu=budget)
    policy = Passes(make(), sharding, TEMPERATURE)
    expected, _ = row_by_row(make(), batch)
    torch.testing.assert_close(policy.log_probs(batch), expected.detach(), **CLOSE)
    sizes = [[int(micro.lengths.sum()) for micro in micros] for micros in policy.split(batch)]
    assert len(sizes) == (2 if rows == "mini-batches" else 1)
    assert sum(map(sum, sizes)) == 36 and max(map(max, sizes)) <= budget


def test_a_row_beyond_the_budget_is_refused():
    passes = Passes(make(), Critic(dtype="float64", max_tokens_per_gpu=8))
    with pytest.raises(UsageError, match=r"has 9 tokens: critic.max_tokens_per_gpu=8. Raise"):
        passes.log_probs(rollouts())


def test_no_rows_at_all():
    batch = rollouts().select([])
    policy = Passes(make(), Sharding(), TEMPERATURE)
    assert policy.log_probs(batch).shape == (0,)
    found, spread = policy.log_probs_and_entropy(batch)
    assert found.shape == spread.shape == (0,)
    for name, gradient in gradients(policy.module, found.sum()).items():
        assert not gradient.any(), name


def test_values_and_scores():
    batch = rollouts()
    module = make("value", seed=4)
    heads = []
    for row in range(len(batch)):
        ids = batch.select([row])["ids"]
        hidden = module.model(input_ids=ids[None]).last_hidden_state[0]
        heads.append((hidden @ module.score.weight.T)[:, 0].detach())
    passes = Passes(module, Sharding(dtype="float64", max_tokens_per_gpu=11))
    values, last_values = passes.values(batch)
    zero = torch.zeros(1).double()
    before = torch.cat([torch.cat([zero, head[:-1]]) for head in heads])
    torch.testing.assert_close(values, before, **CLOSE)
    torch.testing.assert_close(last_values, torch.stack([head[-1] for head in heads]), **CLOSE)
    torch.testing.assert_close(passes.scores(batch), last_values, **CLOSE)
    torch.testing.assert_close(passes.values_of(batch).detach(), before, **CLOSE)


def test_bfloat16_activations_are_close():
    batch = rollouts()
    expected = Passes(make(dtype=torch.float32), Sharding(), TEMPERATURE).log_probs(batch)
    module = make(dtype=torch.float32).bfloat16()
    found = Passes(module, Sharding(), TEMPERATURE).log_probs(batch)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.1)


def test_a_trainable_first_token_is_refused():
    batch = Batch(
        torch.tensor([2, 2]),
        {"ids": torch.zeros(4, dtype=torch.int64), "mask": torch.tensor([0, 1, 1, 0]).bool()},
    )
    with pytest.raises(UsageError, match="row 1 has a trainable first token"):
        Passes(make(), Sharding(), TEMPERATURE).log_probs(batch)


def test_activation_checkpointing_changes_nothing():
    from hybridengine.rlhf.training.sharding import _wrap_forward, decoder_layers

    batch = rollouts()
    plain = Passes(make(), Sharding(), TEMPERATURE)
    wanted = gradients(plain.module, plain.log_probs_and_entropy(batch)[0].sum())
    module = make()
    for layer in decoder_layers(module):
        _wrap_forward(layer, Sharding(activation_checkpointing=True))
    passes = Passes(module, Sharding(), TEMPERATURE)
    close(gradients(module, passes.log_probs_and_entropy(batch)[0].sum()), wanted)
