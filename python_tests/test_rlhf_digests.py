"""Numbers of a few steps as they were when this was written: a change of shape changes none.

Runs of one rank without Ray, in float64. Where a formula, an order of rows or a default changes on
purpose, write down what the failing test says.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import rlhf_local_roles
from rlhf_small_run import SMALL

from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.logging import Sinks
from hybridengine.rlhf.roles.tokenizer import open_tokenizer
from hybridengine.rlhf.trainer.checkpoints import Checkpoints
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.loop import Loop
from hybridengine.rlhf.trainer.prompts import Prompts
from hybridengine.rlhf.trainer.step import Steps
from hybridengine.rlhf.trainer.warmup import warm_up

pytestmark = pytest.mark.python

PPO = ["algorithm.advantage=gae", "algorithm.entropy_coef=0.01", "actor.max_tokens_per_gpu=40"]
_GRPO = [
    "algorithm.advantage=grpo",
    "algorithm.kl.where=loss",
    "algorithm.kl.estimator=k3",
    "algorithm.clip_ratio_high=0.28",
    "actor.lora.enable=true",
    "actor.lora.rank=4",
    "actor.lora.dropout=0.1",
    "warmup.lr=0.02",
]

# By run and metric, its value in each step.
_EXPECTED: dict[str, dict[str, list[float]]] = {
    "ppo": {
        "reward/mean": [0.9835000000000003, 0.9815000000000002],
        "rollout/tokens": [73.0, 75.0],
        "actor/ref_kl": [0.0, -0.0014083463327600398],
        "actor/return": [0.9158977739726026, 0.9185926152126418],
        "actor/loss": [-0.07804991858261255, -0.06719845066646911],
        "actor/grad_norm": [1.4404684216735857, 1.456766732430035],
        "actor/policy_loss": [-0.039855171608117496, -0.02441647157129086],
        "actor/kl": [0.00228881085157354, 0.0010138762894423444],
        "actor/kl_k1": [-0.001802458505876331, 0.0011465348356316874],
        "actor/clip_share": [0.00684931506849315, 0.0],
        "actor/entropy": [4.84634085498402, 4.845973507066208],
        "actor/micro_batches": [10.0, 10.0],
        "critic/loss": [0.3980638929927612, 0.2928116737092507],
        "critic/grad_norm": [2.085639349654226, 3.4371032041924043],
        "critic/value_loss": [0.40042713493386406, 0.2976495455309871],
        "critic/explained_variance": [0.0, -0.1951943502916469],
    },
    "grpo with lora": {
        "reward/mean": [0.9830000000000002, 0.9815000000000002],
        "rollout/tokens": [76.0, 75.0],
        "actor/ref_kl": [0.0, 0.0003486854605425068],
        "actor/loss": [0.008342201546276245, 0.015851057454952907],
        "actor/grad_norm": [0.2947791010927709, 0.04630023928731051],
        "actor/policy_loss": [0.00905583112295422, 0.01901344638229498],
        "actor/kl": [0.0008128210715946586, 5.3793095926320996e-05],
        "actor/kl_k1": [-0.0037095812462098914, 0.0004260214051613964],
        "actor/clip_share": [0.0, 0.0],
        "actor/entropy": [4.846815304087197, 4.846668852250744],
        "actor/micro_batches": [6.0, 6.0],
    },
}


def metrics_of(folder: Path, overrides: list[str]) -> list[dict[str, float]]:
    config = load_config([*SMALL, "trainer.ranks=1", "trainer.eval_before=false", *overrides])
    source = Prompts(config, open_tokenizer(config))
    with rlhf_local_roles.one_rank(folder) as context:
        roles = rlhf_local_roles.local_roles(context, config)
        steps = Steps(config, roles)
        checkpoints = Checkpoints(folder, roles.saved(config), 1)
        loop = Loop(config, steps, source, checkpoints, began=time.monotonic())
        warm_up(config, roles.actor, source.encoder, source.train)
        if roles.reference is not None:
            roles.reference.freeze()
        steps.sync(0, Clock())
        loop.run(Sinks([]))
        roles.reward.close()
    return loop.history


@pytest.mark.parametrize(("name", "overrides"), [("ppo", PPO), ("grpo with lora", _GRPO)])
def test_the_numbers_are_those_that_they_were(
    tmp_path: Path, name: str, overrides: list[str]
) -> None:
    history = metrics_of(tmp_path, overrides)
    for metric, expected in _EXPECTED[name].items():
        found = [step[metric] for step in history]
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), metric
