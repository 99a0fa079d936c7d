"""What an update of policy or critic comes to, by plain formulas in padded float64."""

from __future__ import annotations

import math

import pytest
import rlhf_training_scenarios as scenarios
import torch
import torch.nn.functional as F
from rlhf_training_scenarios import TEMPERATURE, config, make, rollouts

from hybridengine.rlhf.batch import Batch

# How a batch is cut and run; none may change a number.
WAYS = {
    "one micro-batch": {},
    "small ones": {"max_tokens_per_gpu": 9, "sync_every": 1},
    "padded": {"max_tokens_per_gpu": 12, "sequence_packing": False, "sync_every": 2},
    "kept": {"max_tokens_per_gpu": 20, "activation_checkpointing": False},
}


def reference(kind: str) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Two epochs of two mini-batches in padded float64, with torch's own AdamW."""
    module, made = make(kind), config()
    module.set_attn_implementation("sdpa")
    adam = torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-3, weight_decay=0.01)
    losses, norms, sums = [], [], {}
    batch = rollouts()
    for number in (0, 1) * 2:
        rows = batch.select(torch.nonzero(batch["mini_batch"] == number)[:, 0])
        loss, seen = (policy_terms if kind == "policy" else value_terms)(module, rows, made)
        adam.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in module.parameters()))
        for parameter in module.parameters():
            parameter.grad.mul_(min(1.0, 0.5 / norm))
        adam.step()
        losses.append(float(loss.detach()))
        norms.append(norm)
        sums = {name: sums.get(name, 0.0) + float(value.detach()) for name, value in seen.items()}
    tokens = sums.pop("tokens")
    means = {name: value / tokens for name, value in sums.items()}
    found = {"loss": sum(losses) / 4, "grad_norm": sum(norms) / 4, "lr": 1e-2, "updates": 4.0}
    return found | {"tokens": tokens / 2} | means, scenarios.weights_of(module)


def padded_columns(rows: Batch, *names: str) -> list[torch.Tensor]:
    """At trainable tokens only, behind the mask 0."""
    mask = rows.padded("mask")
    return [torch.where(mask, rows.padded(name), 0) for name in names]


def policy_terms(module, rows, made):
    ids, mask = rows.padded("ids"), rows.padded("mask")
    width = torch.arange(ids.shape[1])
    real = (width < rows.lengths[:, None]).long()
    logits = module(input_ids=ids, attention_mask=real).logits[:, :-1] / TEMPERATURE
    plain = logits.log_softmax(-1)
    chosen = F.pad(plain.gather(2, ids[:, 1:, None])[..., 0], (1, 0))
    spread = F.pad(-(plain.exp() * plain).sum(-1), (1, 0))
    names = ("old_log_probs", "ref_log_probs", "advantages", "weights")
    old, ref, advantages, weights = padded_columns(rows, *names)
    chosen = torch.where(mask, chosen, 0)
    ratio = (chosen - old).exp()
    free, bounded = -advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)
    policy = torch.maximum(free, bounded) * weights
    x = ref - chosen
    kl = x.exp() - 1 - x
    kl = torch.where(x > 0, kl.clamp(max=10), kl)
    losses = torch.where(mask, policy + 0.3 * kl - 0.02 * spread, 0)
    moved = chosen - old
    moved_kl = moved.exp() - 1 - moved
    seen = {
        "tokens": mask.sum(),
        "policy_loss": policy[mask].sum(),
        "kl": torch.where(moved > 0, moved_kl.clamp(max=10), moved_kl)[mask].sum(),
        "kl_k1": -moved[mask].sum(),
        "clip_share": (bounded > free)[mask].sum(),
        "entropy": spread[mask].sum(),
    }
    return losses.sum() / mask.sum(), seen


def value_terms(module, rows, made):
    ids, mask = rows.padded("ids"), rows.padded("mask")
    real = (torch.arange(ids.shape[1]) < rows.lengths[:, None]).long()
    hidden = module.model(input_ids=ids, attention_mask=real).last_hidden_state
    values = F.pad((hidden @ module.score.weight.T)[:, :-1, 0], (1, 0))
    old, returns = padded_columns(rows, "values", "returns")
    near = old + (values - old).clamp(-0.2, 0.2)
    free, bounded = (values - returns) ** 2 / 2, (near - returns) ** 2 / 2
    losses = torch.where(mask, torch.maximum(free, bounded), 0)
    seen = {
        "tokens": mask.sum(),
        "value_loss": losses.sum(),
        "clip_share": (bounded > free)[mask].sum(),
    }
    return losses.sum() / mask.sum(), seen


def assert_same(found, expected):
    metrics, weights = found
    for name, value in expected[0].items():
        assert metrics[name] == pytest.approx(value, rel=1e-6, abs=3e-7), name
    assert weights.keys() == expected[1].keys()
    for name, value in expected[1].items():
        found_value = torch.as_tensor(weights[name])
        torch.testing.assert_close(found_value, value, rtol=1e-6, atol=2e-7, msg=name)
