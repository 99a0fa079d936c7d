"""The formulas of PPO and its family, as pure functions that a config chooses by name.

A *registry* holds the functions of one kind: `advantage.get("gae")`, `policy_loss.names()`,
`kl_estimator.bind("k3", cap=5.0)`. To add one, decorate a function with the registry. Tensors are
[B, T], one row a response, with a bool mask that is true at trainable tokens (see masks.py).
"""

from hybridengine.rlhf.algorithms.advantages import Advantages, Rollout, advantage
from hybridengine.rlhf.algorithms.aggregation import Counts, aggregation, global_counts
from hybridengine.rlhf.algorithms.controllers import KLController, kl_controller
from hybridengine.rlhf.algorithms.groups import group_filter
from hybridengine.rlhf.algorithms.kl import kl_estimator, over_kl_limit, with_unbiased_gradient
from hybridengine.rlhf.algorithms.logits import entropy, nucleus, token_log_probs
from hybridengine.rlhf.algorithms.moments import (
    AllReduce,
    Moments,
    explained_variance,
    mean_and_var,
    sum_over,
    whiten,
)
from hybridengine.rlhf.algorithms.policy_losses import PolicyTerms, policy_loss
from hybridengine.rlhf.algorithms.ratios import rollout_correction
from hybridengine.rlhf.algorithms.shaping import overlong_penalty, token_rewards
from hybridengine.rlhf.algorithms.value_losses import ValueTerms, value_loss

__all__ = [
    "Advantages",
    "AllReduce",
    "Counts",
    "KLController",
    "Moments",
    "PolicyTerms",
    "Rollout",
    "ValueTerms",
    "advantage",
    "aggregation",
    "entropy",
    "explained_variance",
    "global_counts",
    "group_filter",
    "kl_controller",
    "kl_estimator",
    "mean_and_var",
    "nucleus",
    "over_kl_limit",
    "overlong_penalty",
    "policy_loss",
    "rollout_correction",
    "sum_over",
    "token_log_probs",
    "token_rewards",
    "value_loss",
    "whiten",
    "with_unbiased_gradient",
]
