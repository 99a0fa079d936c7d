"""Updates of policy and critic against plain formulas, on one rank and on several."""

from __future__ import annotations

import math

import pytest
import rlhf_training_scenarios as scenarios
import torch
import torch.nn.functional as F
from ranks import run_ranks
from rlhf_training_scenarios import TEMPERATURE, config, make, rollouts, update

from hybridengine.rlhf.algorithms import policy_loss
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.training.ppo import bound_policy_loss

pytestmark = pytest.mark.python

# How a batch is cut and run; none may change a number.
WAYS = {
    "one micro-batch": {},
    "small ones": {"max_tokens_per_gpu": 9, "sync_every": 1},
    "padded": {"max_tokens_per_gpu": 12, "sequence_packing": False, "sync_every": 2},
    "recomputed": {"max_tokens_per_gpu": 20, "activation_checkpointing": True},
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
        losses.append(float(loss))
        norms.append(norm)
        sums = {name: sums.get(name, 0.0) + float(value) for name, value in seen.items()}
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


@pytest.fixture(scope="module")
def references():
    return {kind: reference(kind) for kind in ("policy", "value")}


def assert_same(found, expected):
    metrics, weights = found
    for name, value in expected[0].items():
        assert metrics[name] == pytest.approx(value, rel=1e-6, abs=1e-12), name
    assert weights.keys() == expected[1].keys()
    for name, value in expected[1].items():
        found_value = torch.as_tensor(weights[name])
        torch.testing.assert_close(found_value, value, rtol=1e-6, atol=2e-7, msg=name)


@pytest.mark.parametrize("kind", ["policy", "value"])
@pytest.mark.parametrize("way", WAYS)
def test_two_epochs_of_two_mini_batches(references, kind, way):
    found = update(config(**WAYS[way]), rollouts(), kind=kind)
    assert_same(found, references[kind])
    assert found[0]["skipped"] == found[0]["stopped"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_are_one_process(references, tmp_path, world):
    """Rows unevenly over the ranks, none on the last of three; dims that do not divide."""
    ways = WAYS if world == 2 else ["small ones"]
    cases = [("value", WAYS["small ones"]), *(("policy", WAYS[way]) for way in ways)]
    results = run_ranks(world, scenarios.update_on_ranks, str(tmp_path), cases)
    for rank in results:
        for (kind, _), found in zip(cases, rank, strict=True):
            assert_same(found, references[kind])
    assert [each[0] for each in results[0]] == [each[0] for each in results[-1]]


def test_padding_behind_the_mask_changes_nothing(references):
    """Tokens after the end of rows, with NaN in every column."""
    batch = rollouts()
    rows = []
    for index in range(len(batch)):
        row = batch.select([index])
        extra = 1 + index % 3
        tokens = {
            name: torch.cat([column, torch.full((extra,), math.nan).to(column.dtype)])
            for name, column in row.tokens.items()
            if column.is_floating_point()
        }
        tokens["ids"] = torch.cat([row["ids"], torch.full((extra,), 3)])
        tokens["mask"] = torch.cat([row["mask"], torch.zeros(extra, dtype=torch.bool)])
        rows.append(Batch(row.lengths + extra, tokens, row.rows))
    for kind, expected in references.items():
        assert_same(update(config(), Batch.concat(rows), kind=kind), expected)


def test_a_mini_batch_without_trainable_tokens_makes_no_step(references):
    batch = rollouts()
    idle = batch.select([0]).with_tokens(mask=torch.zeros(5, dtype=torch.bool))
    idle = idle.with_rows(mini_batch=torch.tensor([2]))
    found = update(config(), Batch.concat([batch, idle]))
    assert_same(found, references["policy"])


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_is_skipped(number):
    batch = rollouts()
    advantages = batch["advantages"].clone()
    advantages[batch["mask"].nonzero()[0]] = number
    module = make()
    before = scenarios.weights_of(module)
    faulty = batch.with_tokens(advantages=advantages).select([0, 2])  # the first mini-batch alone
    metrics, after = update(config(), faulty, module=module)
    assert (metrics["skipped"], metrics["updates"], metrics["grad_norm"]) == (2, 0, 0)
    for name, value in before.items():
        assert after[name].equal(value), name


def test_ranks_end_early_together(tmp_path):
    """One rank alone would go on: what counts is the mean over both. The step is not taken."""
    batch = rollouts().keep("ids", "mask", "advantages", "old_log_probs", "ref_log_probs")
    far = batch["old_log_probs"] + 0.5 * (torch.arange(36) % 2)
    batch = batch.with_tokens(old_log_probs=far)
    made = config(ppo_epochs=1)
    alone = [update(made, scenarios.share(batch, rank, 2))[0]["kl"] for rank in range(2)]
    metrics, unlimited = update(made, batch)
    together = metrics["kl"]
    assert min(alone) < together < max(alone)
    limit = (min(alone) + together) / 2
    for found, weights in run_ranks(2, scenarios.stop_on_ranks, str(tmp_path), batch, limit):
        assert (found["stopped"], found["updates"], found["grad_norm"]) == (1, 0, 0)
        assert found["kl"] == pytest.approx(together)
        for name, value in scenarios.weights_of(make()).items():
            assert torch.as_tensor(weights[name]).equal(value), name
    assert not unlimited["lm_head.weight"].equal(make().lm_head.weight)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_first_ratio_is_exactly_one(dtype):
    """Where old log-probs were computed of the same batch; also with several micro-batches."""
    made = config(max_tokens_per_gpu=12)
    module = make(dtype=getattr(torch, dtype))
    passes = scenarios.Passes(module, made.actor, TEMPERATURE)
    batch = rollouts()
    batch = batch.with_tokens(old_log_probs=passes.log_probs(batch))
    metrics, _ = update(made, batch, module=module)
    assert metrics["micro_batches"] > 4
    assert metrics["ratio_max_error"] == 0
    shifted = batch.with_tokens(old_log_probs=batch["old_log_probs"] + 1e-3)
    assert update(made, shifted, module=module)[0]["ratio_max_error"] > 1e-4


def test_types_on_ranks(tmp_path):
    results = run_ranks(2, scenarios.mixed_on_ranks, str(tmp_path))
    assert results[0] == results[1]
    full, half = results[0]
    assert full["ratio_max_error"] == half["ratio_max_error"] == 0
    assert half["micro_batches"] > full["micro_batches"]
    assert half["policy_loss"] == pytest.approx(full["policy_loss"], abs=0.02)
    assert half["entropy"] == pytest.approx(full["entropy"], rel=0.02)


def test_options_reach_the_loss():
    made = config().algorithm
    made.clip_ratio, made.dual_clip_ratio = 0.1, 5.0
    made.clip_ratio_low, made.clip_ratio_high = 0.3, None
    options = {}
    for name in policy_loss.names():
        made.policy_loss = name
        options[name] = bound_policy_loss(made).keywords
    assert options == {
        "clip": {"clip_ratio": 0.1},
        "clip-higher": {"clip_low": 0.3},
        "dual-clip": {"clip_ratio": 0.1, "dual_clip_ratio": 5.0},
        "gspo": {"clip_low": 0.3},
        "cispo": {"clip_low": 0.3},
    }


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("name", ["clip-higher", "dual-clip", "gspo", "cispo"])
def test_every_loss_is_independent_of_the_split(name, unbiased):
    results = []
    for way in ("one micro-batch", "small ones"):
        made = config(**WAYS[way])
        made.algorithm.policy_loss = name
        made.algorithm.loss_aggregation = "seq-mean-token-mean"
        made.algorithm.kl.unbiased_gradient = unbiased
        results.append(update(made, rollouts()))
    keys = ("loss", "grad_norm", "kl", "policy_loss", "clip_share")
    assert_same(results[0], ({key: results[1][0][key] for key in keys}, results[1][1]))
