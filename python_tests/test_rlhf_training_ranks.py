"""Training on two and three ranks: equal to one process, alike on all, and able to go on."""

from __future__ import annotations

import pytest
import rlhf_training_scenarios as scenarios
import torch
from ranks import run_ranks
from rlhf_training_oracle import WAYS, assert_same, reference
from rlhf_training_scenarios import config, make, rollouts, share, update
from safetensors.torch import load_file

from hybridengine.rlhf.config.schema import Model
from hybridengine.rlhf.training.fsdp2 import Fsdp2
from hybridengine.rlhf.training.loading import build_model

pytestmark = [pytest.mark.python, pytest.mark.slow]

# Importing transformers in every process takes long where they share a core.
PATIENCE = {"timeout": 120, "limit": 240}


@pytest.fixture(scope="module")
def plan():
    """What the scenarios take: among others a batch whose KL is larger on one rank, and a limit
    above the other's."""
    far = rollouts().keep("ids", "mask", "advantages", "old_log_probs", "ref_log_probs")
    odd = torch.arange(len(far)).remainder(2).repeat_interleave(far.lengths)
    far = far.with_tokens(old_log_probs=far["old_log_probs"] + 0.5 * odd)
    alone = [update(config(ppo_epochs=1), share(far, rank, 2))[0]["kl"] for rank in range(2)]
    together = update(config(ppo_epochs=1), far)[0]["kl"]
    assert min(alone) < together < max(alone)
    updates = [("value", WAYS["small ones"]), *(("policy", way) for way in WAYS.values())]
    limit = (min(alone) + together) / 2
    return {"updates": updates, "far": far, "limit": limit, "together": together}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def two(folder, plan):
    names = ["updates", "early_end", "types", "save", "full_disk", "adapters"]
    return run_ranks(2, scenarios.on_ranks, str(folder), names, plan, **PATIENCE)


@pytest.fixture(scope="module")
def three(folder, plan, two):
    """Of these the last has no rows."""
    plan = {**plan, "updates": [(kind, WAYS["small ones"]) for kind in ("value", "policy")]}
    return run_ranks(3, scenarios.on_ranks, str(folder), ["updates", "load"], plan, **PATIENCE)


def test_ranks_are_one_process(plan, two, three):
    """Rows unevenly over the ranks; dims that do not divide."""
    references = {kind: reference(kind) for kind in ("policy", "value")}
    for rank in two:
        for (kind, _), found in zip(plan["updates"], rank["updates"], strict=True):
            assert_same(found, references[kind])
    for rank in three:
        for kind, found in zip(("value", "policy"), rank["updates"], strict=True):
            assert_same(found, references[kind])
    for ranks in (two, three):
        metrics = [[found[0] for found in rank["updates"]] for rank in ranks]
        assert metrics == [metrics[0]] * len(ranks)


def test_ranks_end_early_together(plan, two):
    """One rank alone would go on: what counts is the mean over both. The step is not taken."""
    for found, weights in (rank["early_end"] for rank in two):
        assert (found["stopped"], found["updates"], found["grad_norm"]) == (1, 0, 0)
        assert found["kl"] == pytest.approx(plan["together"])
        for name, value in make().state_dict().items():
            assert torch.as_tensor(weights[name]).equal(value), name


def test_types(two):
    assert two[0]["types"] == two[1]["types"]
    full, *others = two[0]["types"]
    assert len(others) == 2
    for half in others:
        assert full["ratio_max_error"] == half["ratio_max_error"] == 0
        assert half["micro_batches"] > full["micro_batches"]
        assert half["policy_loss"] == pytest.approx(full["policy_loss"], abs=0.02)
        assert half["entropy"] == pytest.approx(full["entropy"], rel=0.02)


def same_weights(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        pair = (torch.as_tensor(found[name]), torch.as_tensor(value))
        torch.testing.assert_close(*pair, **(tolerance or {"rtol": 0, "atol": 0}), msg=name)


def test_training_goes_on_where_it_was_saved(folder, two, three):
    """To the bit on as many ranks, else but for rounding; also in one process without a group."""
    _, expected, resumed = two[0]["save"]
    same_weights(resumed, expected)
    close = {"rtol": 1e-6, "atol": 2e-7}
    same_weights(three[2]["load"], expected, **close)
    made, module = config(), make(seed=2)
    backend = Fsdp2(module, made.actor, temperature=scenarios.TEMPERATURE)
    backend.load(folder / "state")
    scenarios.train(backend, made, rollouts())
    same_weights(scenarios.weights_of(module), expected, **close)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["hf", "state"]


def test_all_ranks_are_told_where_one_cannot_write(folder, two, three):
    """What was there before stays: three ranks have loaded it."""
    for rank in two:
        assert rank["full_disk"] == ["No space left on device"] * 2
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["hf", "state"]


def test_the_exported_checkpoint(folder, two):
    exported = two[0]["save"][0]
    assert "lm_head.weight" not in load_file(folder / "hf" / "model.safetensors")  # tied
    module = build_model(Model(path=str(folder / "hf")), "policy", torch.float64, 0)
    same_weights(scenarios.weights_of(module), exported)
    assert type(module).__name__ == "Qwen2ForCausalLM"
    assert module.lm_head.weight is module.model.embed_tokens.weight


def test_adapters(two):
    for rank in two:
        base, before, without, after, merged = map(torch.as_tensor, rank["adapters"])
        for each in (before, without):
            torch.testing.assert_close(each, base, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(after, merged, rtol=1e-6, atol=1e-7)
        assert (after - base).abs().max() > 1e-3
