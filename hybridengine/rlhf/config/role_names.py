"""role_names: the roles that a config has a use for. Not where they live: that is the trainer's."""

from __future__ import annotations

from hybridengine.rlhf.config.schema import Config


def roles_of(config: Config) -> list[str]:
    """The roles that the config has a use for, in the order in which they start."""
    algorithm = config.algorithm
    roles = ["actor", "reward"]
    if config.data.mode == "online":
        roles.append("rollout")
    measured = algorithm.kl.where != "none" and algorithm.kl_coef > 0
    inside_actor = config.actor.lora.enable and config.reference.path is None
    if measured and not inside_actor:
        roles.append("reference")
    if algorithm.advantage == "gae":
        roles.append("critic")
    if config.reward_model.path is not None:
        roles.append("reward_model")
    return roles
