"""Weights that generate are given back while their ranks train, and come back by a reshard."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rlhf_local_roles
from rlhf_small_run import SMALL

from hybridengine.rlhf.algorithms.controllers import FixedKL
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.generation import SamplingParams, generate
from hybridengine.rlhf.trainer.learn import Learner

pytestmark = pytest.mark.python


def test_room_for_keys_and_values_is_measured_when_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before reference, critic, moments and the weights that generate have theirs."""
    measured: list[float] = []

    def below(device: object, share: float) -> int:
        measured.append(share)
        return 10**9

    monkeypatch.setattr("hybridengine.rlhf.roles.rollout.bytes_below", below)
    with rlhf_local_roles.one_rank(tmp_path) as context:
        roles = rlhf_local_roles.local_roles(context, load_config([*SMALL, "trainer.ranks=1"]))
        rollout: Any = context.roles["rollout"]
        rollout.sync(0)
        assert measured == []
        params = SamplingParams(2, ignore_eos=True)
        generate(rollout._engine, [[5, 6]], params, [0])
        assert measured == [0.9]
        roles.reward.close()


def test_nothing_of_the_weights_stays_and_all_come_back(tmp_path: Path) -> None:
    with rlhf_local_roles.one_rank(tmp_path) as context:
        roles = rlhf_local_roles.local_roles(context, load_config([*SMALL, "trainer.ranks=1"]))
        rollout: Any = context.roles["rollout"]
        rollout.sync(0)
        model = rollout._engine.model
        before = {name: each.detach().clone() for name, each in model.named_parameters()}
        held = [weakref.ref(each) for each in rollout.weights.values()]
        rollout.sleep()
        gc.collect()
        assert not any(each() is not None for each in held)
        sizes = [each.untyped_storage().nbytes() for each in model.parameters()]
        assert max(sizes) <= 8  # one number each, for their type
        facts = rollout.sync(1)
        assert facts["received_bytes"] == facts["bound_bytes"]
        for name, each in model.named_parameters():
            assert each.equal(before[name]), name
        roles.reward.close()


@pytest.mark.parametrize(
    ("sleep", "colocated", "slept"), [("drop", True, 1), ("drop", False, 0), ("host", True, 0)]
)
def test_they_sleep_where_their_ranks_train_and_the_config_says_so(
    sleep: str, colocated: bool, slept: int
) -> None:
    calls: list[str] = []
    rollout = SimpleNamespace(sleep=lambda: calls.append("sleep"))
    roles: Any = SimpleNamespace(rollout=rollout, colocated=colocated)  # without an actor
    scored: Any = SimpleNamespace(groups=[0], lengths=[1])
    with pytest.raises(AttributeError, match="actor"):
        Learner(load_config([f"rollout.sleep={sleep}"]), roles).learn(
            scored, step=1, kl=FixedKL(coef=0.1)
        )
    assert len(calls) == slept
