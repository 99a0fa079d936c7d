"""role_names: the roles that a config has a use for. Not where they live: that is the trainer's.

The reference is a role, or nothing but the actor without its adapters, or not needed at all.
"""

from __future__ import annotations

from hybridengine.rlhf.config.records import Role
from hybridengine.rlhf.config.schema import Config


def roles_of(config: Config) -> list[Role]:
    """The roles that the config has a use for, in the order in which they start."""
    algorithm = config.algorithm
    roles: list[Role] = ["actor", "reward"]
    if config.data.mode == "online":
        roles.append("rollout")
    if measures_kl(config) and not actor_is_reference(config):
        roles.append("reference")
    if algorithm.advantage == "gae":
        roles.append("critic")
    if config.reward_model.path is not None:
        roles.append("reward_model")
    return roles


def measures_kl(config: Config) -> bool:
    """Whether the KL to the reference is of any use."""
    return config.algorithm.kl.where != "none" and config.algorithm.kl_coef > 0


def actor_is_reference(config: Config) -> bool:
    """Whether the actor gives the log-probs of the reference, by leaving out its adapters."""
    return config.actor.lora.enable and config.reference.path is None
