"""by_place: what a key of `algorithm` stands for where it is null: what is right at its place.

Not a check: what does not fit, where it is set, is refused in algorithm_checks.py.
"""

from __future__ import annotations

from hybridengine.rlhf.config.schema import Algorithm, Config

GSPO_AGGREGATION = "seq-mean-token-mean"


def estimator_of(algorithm: Algorithm) -> str:
    """The estimator of the KL. In the reward its value counts: k1 is unbiased. In the loss its
    gradient does: that of k2 is in expectation the gradient of the KL, that of k1 is 0."""
    if algorithm.kl.estimator is not None:
        return algorithm.kl.estimator
    return "k2" if algorithm.kl.where == "loss" else "k1"


def aggregation_of(algorithm: Algorithm) -> str:
    """The aggregation of the policy's loss. One ratio a response asks for one weight a response."""
    if algorithm.loss_aggregation is not None:
        return algorithm.loss_aggregation
    return GSPO_AGGREGATION if algorithm.policy_loss == "gspo" else "token-mean"


def correction_of(config: Config) -> str:
    """The correction for responses that other weights drew than those that train."""
    if config.algorithm.rollout_correction is not None:
        return config.algorithm.rollout_correction
    return "token" if config.trainer.staleness else "none"
