"""Shards of bfloat16 whose float32 masters lie in the optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import rlhf_local_roles
import torch
from rlhf_small_run import SMALL
from torch import nn

from hybridengine import UsageError
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.config.roles import Optimizer
from hybridengine.rlhf.roles.policy import ActorRole
from hybridengine.rlhf.training.optimizer import ShardedAdamW, local

pytestmark = pytest.mark.python

_NARROW = ["actor.dtype=bfloat16", "actor.param_dtype=bfloat16", "rollout.dtype=bfloat16"]


@pytest.mark.parametrize("offload", [False, True])
def test_steps_too_small_for_the_shards_add_up(offload: bool) -> None:
    """The masters step as torch's AdamW does in float32; shards are they, rounded. A step of 2e-4
    is a tenth of the spacing of bfloat16 below 0.5: the shard alone would never move."""
    layer = nn.Linear(3, 2, bias=False, dtype=torch.bfloat16)
    nn.init.constant_(layer.weight, 0.5)
    theirs = nn.Linear(3, 2, bias=False)
    nn.init.constant_(theirs.weight, 0.5)
    adam = ShardedAdamW(layer, Optimizer(weight_decay=0.0), 2e-4, offload=offload)
    oracle = torch.optim.AdamW(theirs.parameters(), 2e-4, (0.9, 0.999), 1e-8, 0.0)
    moved = []
    for _ in range(12):
        gradient = torch.arange(1.0, 7.0).view(2, 3)
        layer.weight.grad, theirs.weight.grad = gradient.bfloat16(), gradient.clone()
        adam.step()
        oracle.step()
        master = adam.masters.of(layer.weight)
        torch.testing.assert_close(master, theirs.weight.detach())
        assert layer.weight.equal(master.bfloat16()) and layer.weight.grad is None
        moved.append(bool((layer.weight != 0.5).any()))
    assert not moved[0] and moved[-1]


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    layer = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    adam = ShardedAdamW(layer, Optimizer(), 0.1)
    for gradient in (1.0, *[2.0**-9] * 4):  # each less than half the spacing of bfloat16 at 1
        layer.weight.grad = torch.full((1, 1), gradient, dtype=torch.bfloat16)
        adam.masters.take_gradients()
    assert adam.step() == 1 + 4 * 2.0**-9


def test_what_others_write_into_shards_is_taken_in() -> None:
    layer = nn.Linear(2, 1, bias=False, dtype=torch.bfloat16)
    adam = ShardedAdamW(layer, Optimizer(), 0.1)
    master = adam.masters.of(layer.weight)
    with torch.no_grad():
        master.copy_(torch.tensor([[1.001, 2.0]]))
        adam.masters.write()
        layer.weight[0, 1] = 3.0
    adam.masters.take_in()
    assert master.equal(torch.tensor([[1.001, 3.0]]))


def test_bytes_checkpoint_and_export(tmp_path: Path) -> None:
    """A shard takes 2 bytes a weight, its master and moments 12; what is saved are the masters."""
    from safetensors.torch import load_file

    arguments = [*SMALL, *_NARROW, "trainer.ranks=1", "trainer.hf_dtype=float32"]
    with rlhf_local_roles.one_rank(tmp_path) as context:
        actor = ActorRole(context, load_config(arguments))
        weights = sum(each.numel() for each in actor.backend.module.parameters())
        assert sum(local(each).nbytes for each in actor.backend.module.parameters()) == 2 * weights
        masters = [
            actor.backend.optimizer.masters.of(each) for each in actor.backend.module.parameters()
        ]
        moments = [
            each for n, each in actor.backend.optimizer.state_dict().items() if ".exp_avg" in n
        ]
        assert sum(local(each).nbytes for each in (*masters, *moments)) == 12 * weights
        generator = torch.Generator().manual_seed(0)
        for each in masters:
            local(each).add_(1e-3 * torch.randn(local(each).shape, generator=generator))
        actor.backend.optimizer.masters.write()
        expected = [local(each).clone() for each in masters]
        assert actor.save(str(tmp_path / "state")) == actor.export(str(tmp_path / "hf")) == ""
        for each in masters:
            local(each).zero_()
        actor.restore(str(tmp_path / "state"))
        pairs = zip(actor.backend.module.named_parameters(), expected, strict=True)
        exported = load_file(tmp_path / "hf" / "model.safetensors")
        for (name, shard), whole in pairs:
            assert local(actor.backend.optimizer.masters.of(shard)).equal(whole)
            assert local(shard).equal(whole.bfloat16()) and exported[name].equal(whole), name


def test_shards_narrower_than_what_computes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"critic\.param_dtype is bfloat16, but critic\.dtype"):
        load_config(["critic.param_dtype=bfloat16"])
