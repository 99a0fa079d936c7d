"""algorithm_checks: the rules of checks.py that are about the section `algorithm`."""

from __future__ import annotations

from collections.abc import Iterator

from hybridengine.rlhf.config.by_place import GSPO_AGGREGATION, aggregation_of, correction_of
from hybridengine.rlhf.config.schema import Config

# They compare the responses to one prompt with each other.
_GROUP_ADVANTAGES = ("grpo", "rloo", "reinforce++-baseline")

_TWO_BOUND_LOSSES = ("gspo", "cispo")


def _groups(config: Config) -> Iterator[str]:
    if config.rollout.n > 1 or config.data.mode == "offline":
        return
    algorithm = config.algorithm
    wants = []
    if algorithm.advantage in _GROUP_ADVANTAGES:
        wants.append(f"algorithm.advantage={algorithm.advantage}")
    if algorithm.group_filter == "dapo":
        wants.append("algorithm.group_filter=dapo")
    for want in wants:
        yield (
            f"{want} compares the responses to one prompt, but rollout.n is 1. Set rollout.n to 2 "
            "or more."
        )


def _critic(config: Config) -> Iterator[str]:
    if config.critic.warmup_steps > 0 and config.algorithm.advantage != "gae":
        yield (
            f"critic.warmup_steps is {config.critic.warmup_steps}, but "
            f"algorithm.advantage={config.algorithm.advantage} has no critic. Set "
            "critic.warmup_steps=0, or algorithm.advantage=gae."
        )


def _clip_bounds(config: Config) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.clip_ratio_c is not None and algorithm.policy_loss in _TWO_BOUND_LOSSES:
        yield (
            f"algorithm.clip_ratio_c is {algorithm.clip_ratio_c:g}, but algorithm.policy_loss="
            f"{algorithm.policy_loss} has no third bound. Use algorithm.policy_loss=clip, or "
            "algorithm.clip_ratio_c=null."
        )


def _aggregation(config: Config) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.policy_loss == "gspo" and aggregation_of(algorithm) != GSPO_AGGREGATION:
        yield (
            f"algorithm.loss_aggregation is {algorithm.loss_aggregation}, but algorithm.policy_loss"
            "=gspo has one ratio a response, and its gradient is right where every response weighs "
            f"the same. Use algorithm.loss_aggregation={GSPO_AGGREGATION}, or null."
        )


def _truncated(config: Config) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.truncated == "bootstrap" and algorithm.advantage != "gae":
        yield (
            "algorithm.truncated is bootstrap, but algorithm.advantage="
            f"{algorithm.advantage} has no critic, with whose value a cut response could go on. "
            "Use algorithm.truncated=terminal or mask."
        )


def _kl(config: Config) -> Iterator[str]:
    algorithm, kl = config.algorithm, config.algorithm.kl
    if kl.controller == "adaptive" and algorithm.kl_coef == 0:
        yield (
            "algorithm.kl.controller is adaptive, but algorithm.kl_coef is 0 and stays so. Start "
            "from a number above 0, e.g. 0.01."
        )
    if kl.controller == "adaptive" and kl.where == "none":
        yield (
            "algorithm.kl.controller is adaptive, but algorithm.kl.where is none. Use reward or "
            "loss."
        )
    if kl.where == "loss" and kl.estimator == "k1" and not kl.unbiased_gradient:
        yield (
            "algorithm.kl.estimator is k1, but algorithm.kl.where is loss, where the expected "
            "gradient of k1 is 0: nothing would hold the policy near the reference. Use "
            "algorithm.kl.estimator=k2, or algorithm.kl.unbiased_gradient=true."
        )
    if kl.unbiased_gradient and kl.where != "loss":
        yield (
            f"algorithm.kl.unbiased_gradient is true, but algorithm.kl.where is {kl.where}. Set "
            "algorithm.kl.where=loss."
        )


def _support(config: Config) -> Iterator[str]:
    """The trainer's log-probs are over all tokens; cut sampling is another distribution."""
    rollout = config.rollout
    cuts = []
    if rollout.top_p < 1:
        cuts.append(f"rollout.top_p={rollout.top_p:g}")
    if rollout.top_k > 0:
        cuts.append(f"rollout.top_k={rollout.top_k}")
    if rollout.min_tokens > 0:
        cuts.append(f"rollout.min_tokens={rollout.min_tokens}")
    if cuts and config.data.mode == "online" and correction_of(config) == "none":
        yield (
            f"{' and '.join(cuts)} samples among part of the tokens, the trainer's log-probs are "
            "over all: their ratio is not 1. Set algorithm.rollout_correction=token, or "
            "rollout.top_p=1, rollout.top_k=0 and rollout.min_tokens=0."
        )


ALGORITHM_RULES = (_groups, _critic, _clip_bounds, _aggregation, _truncated, _kl, _support)
