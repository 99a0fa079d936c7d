"""The memory that is told before anything is built, against the bytes that roles then hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import rlhf_local_roles
from rlhf_small_run import SMALL
from test_rlhf_training_loading import _RANKS, _rank

from hybridengine.rlhf import command
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.trainer.footprint import Footprint, footprints, table
from hybridengine.rlhf.training.loading import build_model
from hybridengine.rlhf.training.lora import has_adapters
from hybridengine.rlhf.training.models import shard_dtype
from hybridengine.rlhf.training.optimizer import local
from hybridengine.rlhf.training.sharding import shard

pytestmark = pytest.mark.python

_NARROW = [
    *(f"{role}.dtype=bfloat16" for role in ("actor", "critic", "rollout")),
    *(f"{role}.param_dtype=bfloat16" for role in ("actor", "critic")),
]


def _of(config: Config) -> dict[str, Footprint]:
    return {row.role: row for row in footprints(config, "colocate")}


@pytest.mark.parametrize(
    "overrides", [[], _NARROW, ["actor.lora.enable=true", "reference.path=null"]]
)
def test_bytes_are_those_that_roles_hold(tmp_path: Path, overrides: list[str]) -> None:
    config = load_config([*SMALL, "trainer.ranks=1", *overrides])
    told = _of(config)
    with rlhf_local_roles.one_rank(tmp_path) as context:
        groups = rlhf_local_roles.local_roles(context, config)
        assert told.keys() == context.roles.keys() - {"reward"}
        for name in ("actor", "critic", "reference"):
            if name not in told:
                continue
            role = context.roles[name].backend
            held = sum(local(each).nbytes for each in role.module.parameters())
            if has_adapters(role.module):
                own = {id(each) for each in role.module.parameters()}
                merged = role.weights().tensors.values()
                held += sum(local(t).nbytes for t in merged if id(t) not in own)
            assert held == told[name].weights, name
            if name == "reference":
                continue
            weights = dict(role.module.named_parameters())
            moments = [
                local(each)
                for key, each in role.optimizer.state_dict().items()
                if not key.endswith(".step")
            ]
            masters = [role.optimizer.masters.of(each) for each in weights.values()]
            beside = [
                local(m) for m, w in zip(masters, weights.values(), strict=True) if m is not w
            ]
            assert sum(each.nbytes for each in (*moments, *beside)) == told[name].optimizer, name
        tensors = context.roles["rollout"].weights
        assert sum(each.nbytes for each in tensors.values()) == told["rollout"].weights
        groups.reward.close()


def test_of_several_ranks_it_is_the_first_that_holds_most() -> None:
    config = load_config([*SMALL, *_NARROW, f"trainer.ranks={_RANKS}"])
    sizes = []
    for rank in range(_RANKS):
        with _rank(rank) as mesh:
            module = build_model(
                config.model,
                "policy",
                shard_dtype(config.actor, trains=True),
                0,
                cut=lambda m, mesh=mesh: shard(m, config.actor, mesh),
            )
        sizes.append(sum(local(each).nbytes for each in module.parameters()))
    assert max(sizes) == sizes[0] == _of(config)["actor"].weights


def test_unreduced_gradients_are_whole() -> None:
    """With `sync_every` each rank keeps them for all weights, as float32."""
    once, later = (
        _of(load_config([*SMALL, *_NARROW, f"actor.sync_every={n}", "trainer.ranks=4"]))["actor"]
        for n in (1, 2)
    )
    weights = 2 * (128 * 24) + 24 + 2 * (4 * 24 * 24 + 3 * 24 + 3 * 24 * 40 + 2 * 24)
    assert later.gradients - once.gradients == 4 * weights
    assert later.weights == once.weights == 2 * weights / 4


def test_a_dry_run_prints_it_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SMALL, f"run.dir={tmp_path}/runs", "run.name=a", "trainer.ranks=2"]
    assert command.train(arguments, dry=True) == 0
    shown = capsys.readouterr().out
    for line in table(footprints(load_config(arguments), "colocate")):
        assert line in shown
    assert "train: together" in shown and not (tmp_path / "runs").exists()
