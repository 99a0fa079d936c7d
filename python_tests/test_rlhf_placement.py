"""Which roles a config needs, and in which pools they live."""

import pytest

from hybridengine import UsageError
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.config.pools import key_of_ranks, pools_of
from hybridengine.rlhf.config.role_names import roles_of
from hybridengine.rlhf.trainer.placement import (
    choose,
    idle_gpus,
    pool_specs,
)
from hybridengine.rlhf.workers import PoolSpec

pytestmark = pytest.mark.python

_SHORTHANDS = {"trainer.ranks", "trainer.rollout_ranks", "trainer.aux_ranks"}
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
    specs = pool_specs(config, pools_of(config, placement))
    assert {name: spec.num_ranks for name, spec in specs.items()} == pools
    assert all(spec.cpus_per_rank == 0.25 for spec in specs.values())
    assert {"actor", "reference"} <= set(pools_of(config, placement)["train"].roles)
    scoring = "rollout" if placement == "standalone" else "train"
    assert {"rollout", "reward"} <= set(pools_of(config, placement)[scoring].roles)
    assert {key_of_ranks(config, name) for name in pools} <= _SHORTHANDS


def test_named_pools_ask_for_what_they_say_and_else_what_the_config_says():
    config = load_config(
        [
            "trainer.device=auto",
            "cluster.cpus_per_rank=0.5",
            "pools.learn={ranks: 4, roles: [actor, reference, reward]}",
            "pools.talk={ranks: 2, roles: [rollout], cpus_per_rank: 2, one_host: true}",
            "pools.judge={ranks: 3, roles: [critic, reward_model], gpus_per_rank: 0.25}",
        ]
    )
    pools = pools_of(config, "colocate")
    assert pools["judge"].roles == ["critic"]  # there is no reward model
    assert pool_specs(config, pools) == {
        "learn": PoolSpec(4, 0.5, 0.0),
        "talk": PoolSpec(2, 2.0, 0.0, one_host=True),
        "judge": PoolSpec(3, 0.5, 0.25),
    }
    assert key_of_ranks(config, "talk") == "pools.talk.ranks"


def test_a_pool_of_roles_without_a_use_is_not_started():
    config = load_config(
        [
            "pools.all={ranks: 1, roles: [actor, rollout, reference, reward, critic]}",
            "pools.idle={ranks: 9, roles: [reward_model]}",
        ]
    )
    assert set(pools_of(config, "colocate")) == {"all"}


def test_auto_splits_where_there_is_room() -> None:
    config = load_config(["trainer.placement=auto", "trainer.ranks=2", "cluster.cpus_per_rank=1"])
    assert choose(config, {"CPU": 2.0}) == "colocate"
    assert choose(config, {"CPU": 3.0}) == "split"
    no_critic = load_config(["trainer.placement=auto", "algorithm.advantage=rloo", "rollout.n=2"])
    assert choose(no_critic, {"CPU": 64.0}) == "colocate"  # nothing to keep apart
    assert choose(load_config(["trainer.placement=standalone"]), {}) == "standalone"


def test_auto_counts_gpus_as_it_counts_cpus() -> None:
    """Eight ranks that train take all eight GPUs: there is none for a pool of its own."""
    gpu = [*_OFFLINE, "warmup.steps=0", "trainer.device=cuda", "trainer.placement=auto"]
    config = load_config([*gpu, "trainer.ranks=8", "trainer.aux_ranks=1"])
    assert choose(config, {"CPU": 128.0, "GPU": 8.0}) == "colocate"
    assert choose(config, {"CPU": 128.0, "GPU": 9.0}) == "split"
    assert choose(config, {"CPU": 4.0, "GPU": 9.0}) == "colocate"


@pytest.mark.parametrize(
    "arguments", [[], ["examples/grpo_smollm2.yaml"], ["examples/ppo_math.yaml"]]
)
def test_a_machine_with_gpus_runs_what_another_one_does(arguments: list[str]) -> None:
    """Weights are moved in host memory: no rank asks for a GPU that it could not use."""
    config = load_config(arguments)
    free = {"CPU": 128.0, "GPU": 8.0}
    specs = pool_specs(config, pools_of(config, choose(config, free)))
    assert all("GPU" not in spec.bundle() for spec in specs.values())
    assert idle_gpus(config, free) == (
        "trainer.device=auto is cpu, and 8 GPUs stay idle: this version moves weights in host "
        "memory only."
    )
    assert idle_gpus(config, {"CPU": 128.0}) == ""
    assert idle_gpus(load_config([*arguments, "trainer.device=cpu"]), free) == ""


def test_gpus_are_refused_where_weights_would_have_to_lie_on_them() -> None:
    with pytest.raises(UsageError, match=r"trainer\.device is cuda, but weights go to the engine"):
        load_config(["trainer.device=cuda"])
    offline = load_config([*_OFFLINE, "warmup.steps=0", "trainer.device=cuda"])
    assert pool_specs(offline, pools_of(offline, "colocate"))["train"].bundle()["GPU"] == 1.0
