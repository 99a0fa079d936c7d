"""Updates of policy and critic against plain formulas, on one rank and on several."""

from __future__ import annotations

import math

import pytest
import rlhf_training_scenarios as scenarios
import torch
from rlhf_training_oracle import WAYS, assert_same, reference
from rlhf_training_scenarios import TEMPERATURE, config, make, rollouts, update

from hybridengine.rlhf.algorithms import policy_loss
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.training.ppo import bound_policy_loss

pytestmark = pytest.mark.python


@pytest.fixture(scope="module")
def references():
    return {kind: reference(kind) for kind in ("policy", "value")}


@pytest.mark.parametrize("kind", ["policy", "value"])
@pytest.mark.parametrize("way", WAYS)
def test_two_epochs_of_two_mini_batches(references, kind, way):
    found = update(config(**WAYS[way]), rollouts(), kind=kind)
    assert_same(found, references[kind])
    assert found[0]["skipped"] == found[0]["stopped"] == 0


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


def test_options_reach_the_loss():
    made = config().algorithm
    made.clip_ratio, made.clip_ratio_c = 0.1, 5.0
    made.clip_ratio_low, made.clip_ratio_high = 0.3, None
    options = {}
    for name in policy_loss.names():
        made.policy_loss = name
        options[name] = bound_policy_loss(made).keywords
    assert options == {
        "clip": {"clip_ratio": 0.1, "clip_ratio_low": 0.3, "clip_ratio_c": 5.0},
        "gspo": {"clip_ratio_low": 0.3},
        "cispo": {"clip_ratio_low": 0.3},
    }


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("name", policy_loss.names())
def test_every_loss_is_independent_of_the_split(name, unbiased):
    results = []
    for way in ("one micro-batch", "small ones"):
        made = config(**WAYS[way])
        made.algorithm.policy_loss = name
        made.algorithm.clip_ratio_high, made.algorithm.clip_ratio_c = 0.28, 3.0
        made.algorithm.loss_aggregation = "seq-mean-token-mean"
        made.algorithm.kl.unbiased_gradient = unbiased
        results.append(update(made, rollouts()))
    keys = ("loss", "grad_norm", "kl", "policy_loss", "clip_share")
    assert_same(results[0], ({key: results[1][0][key] for key in keys}, results[1][1]))
