"""Combinations of the algorithm's keys that cannot work: each is an error with its mend."""

import pytest

from hybridengine._core import UsageError
from hybridengine.rlhf.config.by_place import aggregation_of, estimator_of
from hybridengine.rlhf.config.loading import load_config

pytestmark = pytest.mark.python

# Overrides of the demo, a part of what the error says, and of its mend.
_COMBINATIONS = [
    (
        ["algorithm.advantage=grop"],
        "algorithm.advantage is 'grop', not one of gae,",
        "nearest, 'grpo'",
    ),
    (
        ["algorithm.policy_loss=clp"],
        "algorithm.policy_loss is 'clp', not one of",
        "nearest, 'clip'",
    ),
    (
        ["algorithm.loss_aggregation=token"],
        "is 'token', not one of token-mean",
        "nearest, 'token-mean'",
    ),
    (["algorithm.group_filter=dap"], "'dap', not one of none, dapo (on", "nearest, 'dapo'"),
    (["algorithm.advantage=grpo"], "algorithm.advantage=grpo compares", "Set rollout.n to 2"),
    (["algorithm.advantage=rloo"], "algorithm.advantage=rloo compares", "Set rollout.n to 2"),
    (["algorithm.advantage=reinforce++-baseline"], "baseline compares", "Set rollout.n to 2"),
    (["algorithm.group_filter=dapo"], "group_filter=dapo compares", "Set rollout.n to 2"),
    (
        ["algorithm.policy_loss=cispo", "algorithm.clip_ratio_c=3"],
        "clip_ratio_c is 3, but algorithm.policy_loss=cispo",
        "Use algorithm.policy_loss=clip, or",
    ),
    (
        ["algorithm.kl.controller=adaptive", "algorithm.kl_coef=0"],
        "is adaptive, but algorithm.kl_coef is 0",
        "above 0",
    ),
    (
        ["algorithm.kl.controller=adaptive", "algorithm.kl.where=none"],
        "is adaptive, but algorithm.kl.where is none",
        "Use reward or loss.",
    ),
    (
        ["algorithm.kl.where=loss", "algorithm.kl.estimator=k1"],
        "expected gradient of k1 is 0",
        "Use algorithm.kl.estimator=k2, or",
    ),
    (
        ["algorithm.policy_loss=gspo", "algorithm.loss_aggregation=token-mean"],
        "loss_aggregation is token-mean, but algorithm.policy_loss=gspo",
        "Use algorithm.loss_aggregation=seq-mean-token-mean",
    ),
    (
        ["algorithm.truncated=bootstrap", "algorithm.advantage=remax"],
        "truncated is bootstrap, but algorithm.advantage=remax has no critic",
        "Use algorithm.truncated=terminal or mask.",
    ),
    (["algorithm.kl.unbiased_gradient=true"], "where is reward", "Set algorithm.kl.where=loss."),
    (["rollout.top_p=0.9"], "rollout.top_p=0.9 samples among part", "rollout_correction=token"),
    (["rollout.top_k=5"], "rollout.top_k=5 samples among part", "rollout_correction=token"),
    (["rollout.min_tokens=5"], "rollout.min_tokens=5 samples among part", "rollout.min_tokens=0"),
    (
        ["critic.warmup_steps=1", "algorithm.advantage=remax"],
        "critic.warmup_steps is 1, but algorithm.advantage=remax has no critic",
        "Set critic.warmup_steps=0",
    ),
]


@pytest.mark.parametrize(("overrides", "what", "mend"), _COMBINATIONS)
def test_an_impossible_combination_has_a_mend(overrides, what, mend):
    with pytest.raises(UsageError) as caught:
        load_config(overrides)
    error = str(caught.value)
    assert what in error and mend in error
    assert error.endswith(".") and " Also: " not in error


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.advantage=grpo", "rollout.n=2"],
        ["algorithm.group_filter=dapo", "rollout.n=2"],
        ["algorithm.advantage=remax"],
        [
            "algorithm.clip_ratio_low=1",
            "algorithm.clip_ratio_high=0.28",
            "algorithm.clip_ratio_c=10",
        ],
        ["algorithm.kl.controller=adaptive"],
        ["algorithm.kl.where=loss"],
        ["algorithm.kl.where=loss", "algorithm.kl.estimator=k3"],
        [
            "algorithm.kl.estimator=k1",
            "algorithm.kl.where=loss",
            "algorithm.kl.unbiased_gradient=true",
        ],
        ["algorithm.policy_loss=gspo"],
        ["algorithm.policy_loss=gspo", "algorithm.loss_aggregation=seq-mean-token-mean"],
        ["algorithm.truncated=bootstrap"],
        ["algorithm.truncated=mask", "algorithm.advantage=remax"],
        ["algorithm.kl.unbiased_gradient=true", "algorithm.kl.where=loss"],
        ["rollout.top_p=0.9", "algorithm.rollout_correction=token"],
    ],
)
def test_the_neighbour_of_an_impossible_combination_is_possible(overrides):
    load_config(overrides)


@pytest.mark.parametrize(
    ("overrides", "estimator", "aggregation"),
    [
        ([], "k1", "token-mean"),
        (["algorithm.kl.where=loss"], "k2", "token-mean"),
        (["algorithm.kl.where=loss", "algorithm.kl.estimator=k3"], "k3", "token-mean"),
        (["algorithm.policy_loss=gspo"], "k1", "seq-mean-token-mean"),
        (["algorithm.loss_aggregation=seq-mean-token-sum"], "k1", "seq-mean-token-sum"),
    ],
)
def test_what_is_not_set_is_what_is_right_at_its_place(overrides, estimator, aggregation):
    algorithm = load_config(overrides).algorithm
    assert (estimator_of(algorithm), aggregation_of(algorithm)) == (estimator, aggregation)
