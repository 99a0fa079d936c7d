"""pools: the pools of ranks that a config asks for, by name, and which role lives where.

`pools` is taken as it is. Without it `trainer.placement` stands for pools of `trainer.ranks`,
`rollout_ranks` and `aux_ranks`:

    colocate    train: actor, rollout, reference, reward, critic, reward_model
    split       train: actor, rollout, reference, reward      aux: critic, reward_model
    standalone  train: actor, reference   rollout: rollout, reward   aux: critic, reward_model
"""

from __future__ import annotations

from hybridengine.rlhf.config.records import Pool
from hybridengine.rlhf.config.role_names import roles_of
from hybridengine.rlhf.config.schema import Config

TRAIN = "train"

_RANKS = {TRAIN: "ranks", "rollout": "rollout_ranks", "aux": "aux_ranks"}

_AUX = ("critic", "reward_model")


def pools_of(config: Config, placement: str) -> dict[str, Pool]:
    """The pools that the run has a use for, each with those of its roles that it has. `placement`:
    one of those above, which counts where the config names no pools."""
    wanted = roles_of(config)
    pools: dict[str, Pool] = {}
    for name, pool in (config.pools or _shorthand(config, placement)).items():
        used = [role for role in pool.roles if role in wanted]
        if used:
            pools[name] = pool.model_copy(update={"roles": used})
    return pools


def key_of_ranks(config: Config, pool: str) -> str:
    """The key that says how many ranks the pool of this name has."""
    return f"pools.{pool}.ranks" if config.pools else f"trainer.{_RANKS[pool]}"


def _shorthand(config: Config, placement: str) -> dict[str, Pool]:
    roles = {role: _pool_by_placement(role, placement) for role in roles_of(config)}
    return {
        name: Pool(
            ranks=getattr(config.trainer, ranks),
            roles=[role for role in roles if roles[role] == name],
        )
        for name, ranks in _RANKS.items()
    }


def _pool_by_placement(role: str, placement: str) -> str:
    if placement == "standalone" and role in ("rollout", "reward"):
        return "rollout"
    return "aux" if placement in ("split", "standalone") and role in _AUX else TRAIN
