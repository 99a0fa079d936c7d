"""Registries: names, options, and errors that say which there are."""

import subprocess
import sys

import pytest

from hybridengine import UsageError
from hybridengine.rlhf import algorithms
from hybridengine.rlhf.algorithms import advantage, kl_controller, policy_loss
from hybridengine.rlhf.registry import Registry

pytestmark = pytest.mark.python


def test_every_algorithm_has_its_name() -> None:
    named = {
        value.kind: value.names()
        for value in vars(algorithms).values()
        if isinstance(value, Registry)
    }
    assert named == {
        "advantage": ("gae", "grpo", "rloo", "reinforce++", "reinforce++-baseline", "remax"),
        "policy loss": ("clip", "gspo", "cispo"),
        "value loss": ("mse", "clip"),
        "KL estimator": ("k1", "k2", "k3"),
        "KL controller": ("fixed", "adaptive"),
        "loss aggregation": ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"),
        "group filter": ("none", "dapo"),
        "rollout correction": ("token", "sequence"),
    }


def test_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    expected = r"'gea' is no advantage: known are gae, grpo, .*remax\. Use the nearest, 'gae'"
    with pytest.raises(UsageError, match=expected):
        advantage.get("gea")
    with pytest.raises(UsageError, match=r"known are gae.*\. Use one of these\."):
        advantage.get("zzzzzz")


def test_an_unknown_option_lists_the_known_ones_and_the_nearest() -> None:
    expected = r"'gspo' has no option 'clip_high': it takes clip_ratio_low, clip_ratio_high\. "
    with pytest.raises(UsageError, match=expected + "Use the nearest, 'clip_ratio_high'"):
        policy_loss.bind("gspo", clip_high=0.3)
    with pytest.raises(UsageError, match="advantage 'remax' has no option 'lam': it takes none"):
        advantage.bind("remax", lam=1.0)
    assert kl_controller.options("adaptive") == ("coef", "target", "horizon")


def test_a_name_is_given_once() -> None:
    words: Registry[int] = Registry("word")

    @words("one")
    def one(*, times: int = 1) -> int:
        return times

    assert words.get("one") is one and words.bind("one", times=3)() == 3
    with pytest.raises(UsageError, match="two of kind word are named 'one'"):
        words("one")(one)


def test_the_package_imports_nothing_that_starts_something() -> None:
    code = (
        "import sys, hybridengine.rlhf, hybridengine.rlhf.balance\n"
        "assert 'torch' not in sys.modules\n"
        "import hybridengine.rlhf.algorithms\n"
        "assert not {'ray', 'vllm', 'wandb', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
