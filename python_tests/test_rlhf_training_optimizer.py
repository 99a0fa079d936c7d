"""AdamW over shards, supervised updates, and training state on the host."""

from __future__ import annotations

import math

import pytest
import rlhf_training_scenarios as scenarios
import torch
from rlhf_training_scenarios import make, rollouts
from torch import nn

from hybridengine import UsageError
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.roles import Optimizer, Sharding
from hybridengine.rlhf.training import memory
from hybridengine.rlhf.training.optimizer import ShardedAdamW
from hybridengine.rlhf.training.passes import Passes
from hybridengine.rlhf.training.state import NotWritten, load_state, save_state
from hybridengine.rlhf.training.stepping import Stepper
from hybridengine.rlhf.training.supervised import NextTokenLoss, PairUpdate

pytestmark = pytest.mark.python


def learning_rates(steps: int, total: int | None, **options) -> list[float]:
    layer = nn.Linear(1, 1)
    adam = ShardedAdamW(layer, Optimizer(**options), 8.0, total_steps=total)
    rates = []
    for _ in range(steps):
        rates.append(adam.lr)
        layer.weight.grad = torch.ones(1, 1)
        adam.step()
    return rates


def test_schedules():
    assert learning_rates(2, None) == [8.0, 8.0]
    assert learning_rates(5, None, warmup_steps=3) == [2.0, 4.0, 6.0, 8.0, 8.0]
    assert learning_rates(6, 5, warmup_steps=1, schedule="linear") == [4.0, 8.0, 6.0, 4.0, 2.0, 0.0]
    cosine = learning_rates(4, 4, schedule="cosine")
    expected = [4 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]
    assert cosine == pytest.approx(expected)
    with pytest.raises(UsageError, match="schedule=linear falls to 0"):
        learning_rates(1, None, schedule="linear")


@pytest.mark.parametrize("offload", [False, True])
def test_steps_are_those_of_torch(offload):
    options = Optimizer(betas=[0.8, 0.9], eps=1e-4, weight_decay=0.3)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    theirs.bias.requires_grad_(False)
    ours.bias.requires_grad_(False)
    adam = ShardedAdamW(ours, options, 0.1, offload=offload)
    oracle = torch.optim.AdamW([theirs.weight], 0.1, (0.8, 0.9), 1e-4, 0.3)
    for step in range(3):
        gradient = torch.arange(6.0).view(2, 3) * (step + 1) / 10
        ours.weight.grad = gradient.clone()
        norm = math.sqrt(float(gradient.square().sum()))
        theirs.weight.grad = gradient * min(1.0, 0.9 / norm)
        assert adam.step(0.9) == pytest.approx(norm)
        oracle.step()
        torch.testing.assert_close(ours.weight, theirs.weight)
        assert ours.weight.grad is None
    assert ours.bias.equal(theirs.bias)


def test_a_step_that_is_not_finite_leaves_everything():
    layer = nn.Linear(2, 2)
    adam = ShardedAdamW(layer, Optimizer(), 0.1)
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.tensor([[1.0, math.inf], [0.0, 0.0]])
    assert adam.step(1.0) == math.inf
    assert layer.weight.equal(before) and layer.weight.grad is None
    assert (adam.updates, adam.skipped) == (0, 1)


def sft_batch() -> Batch:
    batch = rollouts()
    return batch.keep("ids", "mask")


@pytest.mark.parametrize("budget", [9, 1000])
def test_supervised(budget):
    module, oracle = make(), make()
    sharding = Sharding(dtype="float64", max_tokens_per_gpu=budget)
    adam = ShardedAdamW(module, Optimizer(eps=1e-3, grad_clip=None), 0.01)
    found = Stepper(Passes(module, sharding), adam).run(sft_batch(), NextTokenLoss())
    total, count, oracle_adam = 0.0, 0, torch.optim.AdamW(oracle.parameters(), 0.01, eps=1e-3)
    for row in range(len(scenarios.LENGTHS)):
        one = sft_batch().select([row])
        logits = oracle(input_ids=one["ids"][None]).logits[0, :-1]
        losses = nn.functional.cross_entropy(logits, one["ids"][1:], reduction="none")
        total = total + losses[one["mask"][1:]].sum()
        count += int(one["mask"].sum())
    (total / count).backward()
    oracle_adam.step()
    assert found["loss"] == pytest.approx(float(total.detach()) / count, rel=1e-6)
    assert found["tokens"] == count
    for name, value in oracle.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("budget", [16, 1000])
def test_pairs(budget):
    module, oracle = make("classifier"), make("classifier")
    chosen = rollouts((3, 5, 2, 6)).keep("ids", "mask")
    rejected = rollouts((4, 2, 7, 3), seed=8).keep("ids", "mask")
    sharding = Sharding(dtype="float64", max_tokens_per_gpu=budget)
    adam = ShardedAdamW(module, Optimizer(eps=1e-3, grad_clip=None), 0.01)
    pairs = PairUpdate(Passes(module, sharding), adam)
    expected = pairs.evaluate(chosen, rejected)
    found = pairs.update(chosen, rejected)

    def score(batch, row):
        ids = batch.select([row])["ids"]
        return oracle.model(input_ids=ids[None]).last_hidden_state[0, -1] @ oracle.score.weight[0]

    margins = torch.stack([score(chosen, row) - score(rejected, row) for row in range(4)])
    loss = -(1 / (1 + (-margins).exp())).log().mean()
    loss.backward()
    torch.optim.AdamW(oracle.parameters(), 0.01, eps=1e-3).step()
    assert found["loss"] == pytest.approx(float(loss.detach()), rel=1e-6)
    assert found["accuracy"] == float((margins > 0).double().mean())
    assert (found["pairs"], found["skipped"]) == (4, 0)
    assert found["micro_batches"] == (1 if budget == 1000 else 2)
    assert expected["loss"] == pytest.approx(found["loss"], rel=1e-9)
    for name, value in oracle.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-6, atol=2e-7)
    assert pairs.evaluate(chosen, rejected)["loss"] < found["loss"]


def test_pairs_need_two_sides():
    passes = Passes(make("classifier"), Sharding(dtype="float64"))
    update = PairUpdate(passes, ShardedAdamW(passes.module, Optimizer(), 0.01))
    with pytest.raises(UsageError, match="1 chosen and 2 rejected rows make no pairs"):
        update.update(rollouts((3,)), rollouts((3, 4)))


def test_training_goes_on_after_offloading():
    """On a host nothing moves, and the next step is the same."""
    weights = []
    for offloads in (False, True):
        module = make()
        adam = ShardedAdamW(module, Optimizer(), 0.01)
        stepper = Stepper(Passes(module, Sharding(dtype="float64")), adam)
        stepper.run(sft_batch(), NextTokenLoss())
        if offloads:
            adam.offload_moments()
            adam.load_moments()
        stepper.run(sft_batch(), NextTokenLoss())
        weights.append(module.model.embed_tokens.weight)
    assert weights[0].equal(weights[1])


def test_memory_is_counted_in_shares_and_bytes():
    host = torch.device("cpu")
    share = memory.memory_share(host)
    assert 0 < share < 1
    assert memory.bytes_below(host, share / 2) == 0
    assert memory.bytes_below(host, 1.0) > memory.bytes_below(host, (1 + share) / 2) > 0


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"has no \.metadata"):
        load_state(tmp_path, make())


def test_a_save_that_fails_leaves_the_last_one(tmp_path, monkeypatch):
    module = make()
    save_state(tmp_path / "state", module)
    before = sorted((tmp_path / "state").iterdir())

    def fail(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr("torch.distributed.checkpoint.state_dict_saver.save", fail)
    with pytest.raises(NotWritten, match="no space left"):
        save_state(tmp_path / "state", module)
    assert sorted((tmp_path / "state").iterdir()) == before
    load_state(tmp_path / "state", make(seed=2))
