"""Which roles a config needs, and in which pools they live."""

import pytest

from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.config.role_names import roles_of
from hybridengine.rlhf.trainer.placement import (
    choose,
    gpus_per_rank,
    pool_of,
    pool_specs,
)

pytestmark = pytest.mark.python

_ALL = ["actor", "reward", "rollout", "reference", "critic"]
_OFFLINE = ["preset=demo", "data.gym.name=null", "data.train_files=[f]", "data.mode=offline"]


@pytest.mark.parametrize(
    ("overrides", "roles"),
    [
        ([], _ALL),
        (["reward_model.path=m"], [*_ALL, "reward_model"]),
        (["algorithm.kl_coef=0"], ["actor", "reward", "rollout", "critic"]),
        (["algorithm.kl.where=none"], ["actor", "reward", "rollout", "critic"]),
        (["algorithm.advantage=rloo", "rollout.n=2"], ["actor", "reward", "rollout", "reference"]),
        # The frozen weights below the adapters are the reference.
        (["actor.lora.enable=true"], ["actor", "reward", "rollout", "critic"]),
        (["actor.lora.enable=true", "reference.path=m"], _ALL),
        (
            [*_OFFLINE, "warmup.steps=0"],
            ["actor", "reward", "reference", "critic"],
        ),
    ],
)
def test_only_roles_with_a_use_are_started(overrides: list[str], roles: list[str]) -> None:
    assert roles_of(load_config(overrides)) == roles


@pytest.mark.parametrize(
    ("placement", "pools"),
    [
        ("colocate", {"train": 3}),
        ("split", {"train": 3, "aux": 2}),
        ("standalone", {"train": 3, "rollout": 4, "aux": 2}),
    ],
)
def test_pools(placement: str, pools: dict[str, int]) -> None:
    config = load_config(
        [
            "trainer.ranks=3",
            "trainer.rollout_ranks=4",
            "trainer.aux_ranks=2",
            f"trainer.placement={placement}",
            "cluster.cpus_per_rank=0.25",
        ]
    )
    specs = pool_specs(config, placement, 0.0)
    assert {name: spec.num_ranks for name, spec in specs.items()} == pools
    assert all(spec.cpus_per_rank == 0.25 for spec in specs.values())
    assert pool_of("reference", placement) == pool_of("actor", placement) == "train"


def test_auto_splits_where_there_is_room() -> None:
    config = load_config(["trainer.placement=auto", "trainer.ranks=2", "cluster.cpus_per_rank=1"])
    assert choose(config, {"CPU": 2.0}) == "colocate"
    assert choose(config, {"CPU": 3.0}) == "split"
    no_critic = load_config(["trainer.placement=auto", "algorithm.advantage=rloo", "rollout.n=2"])
    assert choose(no_critic, {"CPU": 64.0}) == "colocate"  # nothing to keep apart
    assert choose(load_config(["trainer.placement=standalone"]), {}) == "standalone"


def test_gpus_are_taken_where_every_rank_can_have_one() -> None:
    config = load_config(["trainer.ranks=2"])
    assert gpus_per_rank(config, {"CPU": 8.0, "GPU": 1.0}) == 0.0
    assert gpus_per_rank(config, {"CPU": 8.0, "GPU": 2.0}) == 1.0
    assert gpus_per_rank(load_config(["trainer.device=cpu"]), {"GPU": 8.0}) == 0.0
    assert gpus_per_rank(load_config(["trainer.device=cuda"]), {}) == 1.0
