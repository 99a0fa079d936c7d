"""Registries: names, options, and errors that say which there are."""

import re
import subprocess
import sys

import pytest

from hybridengine import UsageError
from hybridengine.rlhf import algorithms
from hybridengine.rlhf.algorithms import advantage, kl_controller, policy_loss
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.registry import Registry
from hybridengine.rlhf.training.ppo import bound_policy_loss

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


def test_a_function_of_ones_own_stands_in_for_a_name(tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def fixed(rollout, *, gamma, lam=0.5):\n    return rollout, gamma, lam\nnumber = 3\n"
    )
    assert advantage.options(f"{path}:fixed") == ("gamma", "lam")
    assert advantage.bind(f"{path}:fixed", gamma=0.9)("rows") == ("rows", 0.9, 0.5)
    assert advantage.get(f"{path}:fixed") is advantage.get(f"{path}:fixed")  # imported once
    assert f"{path}:fixed" not in advantage.names()
    with pytest.raises(UsageError, match="has no option 'clip': it takes gamma, lam"):
        advantage.bind(f"{path}:fixed", clip=1)


@pytest.mark.parametrize("key", ["algorithm.advantage", "algorithm.policy_loss"])
def test_a_file_of_ones_own_is_tried_before_a_run_starts(key: str, tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def mine(*a, **k):\n    return a\nnumber = 3\n")
    config = load_config([f"{key}={path}:mine"])
    assert getattr(config.algorithm, key.partition(".")[2]) == f"{path}:mine"
    for value, error in (
        (f"{path}:other", f"{key}: {path} has no 'other': it has mine. Use one of these."),
        (f"{path}:number", f"{key}: 'number' of {path} is a int, not a function."),
        (str(path), f"{key}: '{path}' is not of the form path.py:name."),
        ("no.py:f", f"{key}: there is no file 'no.py'. Mend the path."),
    ):
        with pytest.raises(UsageError, match=re.escape(error)):
            load_config([f"{key}={value}"])


def test_a_loss_of_ones_own_gets_the_options_that_it_takes(tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def loss(log_probs, old, advantages, mask, *, clip_ratio):\n    return clip_ratio\n"
    )
    config = load_config([f"algorithm.policy_loss={path}:loss", "algorithm.clip_ratio=0.125"])
    assert bound_policy_loss(config.algorithm)(None, None, None, None) == 0.125


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
