"""The actor around its warm-up, and what it measures for the reference, on one rank without Ray."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import rlhf_local_roles
import torch
from rlhf_small_run import SMALL

from hybridengine.rlhf.batch import Batch, as_rows
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.roles.policy import ActorRole
from hybridengine.rlhf.roles.tokenizer import open_tokenizer
from hybridengine.rlhf.trainer.prompts import Prompts
from hybridengine.rlhf.trainer.warmup import warm_up

pytestmark = pytest.mark.python

_LORA = ["actor.lora.enable=true", "actor.lora.rank=8", "warmup.lr=0.05"]


def _actor(context: Any, *overrides: str) -> ActorRole:
    actor = ActorRole(context, load_config([*SMALL, "trainer.ranks=1", *overrides]))
    context.roles["actor"] = actor
    return actor


def _rows() -> Batch:
    return as_rows([[40 + n, 50] for n in range(4)], [[60, 61 + n, 2] for n in range(4)])


def _prepared(actor: ActorRole) -> Batch:
    batch, _ = actor.prepare((_rows(), {}))
    return batch


def test_the_reference_of_adapters_is_the_policy_behind_the_warm_up(tmp_path: Path) -> None:
    with rlhf_local_roles.one_rank(tmp_path) as context:
        actor = _actor(context, *_LORA)
        began = _prepared(actor)
        for _ in range(5):
            actor.supervise(_rows())
        warm = actor.backend.log_probs(_rows())
        actor.end_warm_up()
        found = _prepared(actor)
    assert (warm - began["old_log_probs"]).abs().max() > 0.1
    assert torch.allclose(found["old_log_probs"], warm, rtol=0, atol=1e-12)
    assert torch.equal(found["ref_log_probs"], found["old_log_probs"])


def test_adapters_go_on_learning_behind_the_warm_up(tmp_path: Path) -> None:
    with rlhf_local_roles.one_rank(tmp_path) as context:
        actor = _actor(context, *_LORA)
        actor.supervise(_rows())
        actor.end_warm_up()
        before = _prepared(actor)
        actor.update(before.with_tokens(advantages=torch.ones(int(before.lengths.sum()))), 0.0)
        after = _prepared(actor)
    assert torch.equal(after["ref_log_probs"], before["ref_log_probs"])
    assert (after["old_log_probs"] - before["old_log_probs"]).abs().max() > 1e-3


@pytest.mark.parametrize("off", ["algorithm.kl_coef=0", "algorithm.kl.where=none"])
def test_without_a_kl_adapters_cost_no_second_pass(tmp_path: Path, off: str) -> None:
    with rlhf_local_roles.one_rank(tmp_path) as context:
        found = _prepared(_actor(context, *_LORA, off))
    assert "old_log_probs" in found and "ref_log_probs" not in found


def test_moments_of_the_warm_up_are_gone_behind_it(tmp_path: Path) -> None:
    config = load_config([*SMALL, "trainer.ranks=1"])
    source = Prompts(config, open_tokenizer(config))
    with rlhf_local_roles.one_rank(tmp_path) as context:
        roles = rlhf_local_roles.local_roles(context, config)
        backend = roles.actor.role.backend
        made = list[Any]()
        keep = backend.warm_up

        def kept(*args: Any) -> dict[str, float]:
            found = keep(*args)
            made.append(weakref.ref(backend._warming.optimizer))
            return found

        backend.warm_up = kept
        assert warm_up(config, roles.actor, source.encoder, source.train) is not None
        gc.collect()
        assert len(made) == config.warmup.steps and {each() for each in made} == {None}


def test_the_learning_rate_falls_over_the_steps_that_the_actor_takes(tmp_path: Path) -> None:
    overrides = ["actor.optimizer.schedule=linear", "critic.optimizer.schedule=linear"]
    steps = ["trainer.steps=20", "critic.warmup_steps=10"]
    with rlhf_local_roles.one_rank(tmp_path) as context:
        config = load_config([*SMALL, "trainer.ranks=1", *overrides, *steps])
        roles = rlhf_local_roles.local_roles(context, config)
        actor, critic = (role.role.backend.optimizer for role in (roles.actor, roles.critic))
        updates = 3 * 2  # 10 prompts in mini-batches of 4, twice
        assert (actor.total_steps, critic.total_steps) == (10 * updates, 20 * updates)
        actor.updates = 10 * updates - 1
        assert actor.lr == pytest.approx(config.actor.lr / (10 * updates))
