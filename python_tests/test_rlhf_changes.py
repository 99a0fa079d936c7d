"""What of its config a run may change when it is resumed: it takes effect, or is named."""

import json
from pathlib import Path
from typing import Any

import pytest
from rlhf_small_run import SMALL

from hybridengine import UsageError
from hybridengine.rlhf.algorithms.controllers import AdaptiveKL, FixedKL
from hybridengine.rlhf.config.keys import entries
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.trainer.changes import _FIXED, check_unchanged, flat, words_of_changes
from hybridengine.rlhf.trainer.loop import resumed_controller
from hybridengine.rlhf.trainer.placement import saved_roles

pytestmark = pytest.mark.python


def _config(*overrides: str) -> Config:
    return load_config([*SMALL, "run.name=run", *overrides])


def _saved(folder: Path, config: Config) -> None:
    """A whole checkpoint of step 2."""
    checkpoint = folder / "checkpoints" / "step_00000002"
    for role in saved_roles(config):
        (checkpoint / role).mkdir(parents=True)
    (checkpoint / "controller.json").write_text(json.dumps({"files": {}, "config": flat(config)}))


def _checked(folder: Path, *overrides: str) -> str:
    config = _config("run.resume=true", *overrides)
    check_unchanged(config, folder, saved_roles(config))
    return words_of_changes(config, folder)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["seed=7"], r"seed was 0 and is 7: it has put the data in order"),
        (["model.config={model_type: llama}"], r"model\.config\.hidden_size was 24 and is null"),
        (["model.tokenizer=other"], r"model\.tokenizer was null and is other"),
        (["data.gym.options.min_terms=1"], r"data\.gym\.options\.min_terms was 2 and is 1"),
        (["data.max_prompt_length=17"], r"data\.max_prompt_length was 16 and is 17"),
        (["data.shuffle=false"], r"data\.shuffle was true and is false: the checkpoint counts"),
        (["warmup.steps=4"], r"warmup\.steps was 3 and is 4: it is over"),
        (["actor.lora.enable=true"], r"actor\.lora\.enable was false and is true"),
        (["critic.path=other"], r"critic\.path was null and is other: the checkpoint has its"),
        (["seed=7", "warmup.lr=1"], r"seed was 0 .*; warmup\.lr was 0.001 and .* Give these keys"),
    ],
)
def test_what_has_had_its_effect_must_stay(
    tmp_path: Path, overrides: list[str], words: str
) -> None:
    _saved(tmp_path, _config())
    with pytest.raises(UsageError, match=f"cannot go on from step 2 so: .*{words}"):
        _checked(tmp_path, *overrides)


def test_offline_the_length_of_responses_says_which_rows_there_are(tmp_path: Path) -> None:
    offline = ["data.mode=offline", "warmup.steps=0", "data.gym.name=null", "data.train_files=a"]
    _saved(tmp_path, _config(*offline))
    with pytest.raises(UsageError, match=r"data\.max_response_length was 4 and is 3"):
        _checked(tmp_path, *offline, "data.max_response_length=3")


def test_what_takes_effect_is_said_with_both_values(tmp_path: Path) -> None:
    _saved(tmp_path, _config())
    assert _checked(tmp_path) == ""
    assert _checked(tmp_path, "run.dir=elsewhere", "data.eval_size=5") == ""
    said = _checked(
        tmp_path,
        *("actor.lr=2e-3", "algorithm.kl_coef=0.5", "trainer.steps=9", "data.eval_size=7"),
        *("data.max_response_length=3", "reward.options={length: {target: 3}}", "rollout.n=4"),
    )
    assert said == (
        "changed since step 2: actor.lr 0.001 -> 0.002, algorithm.kl_coef 0.01 -> 0.5, "
        "data.eval_size 5 -> 7, data.max_response_length 4 -> 3, "
        "reward.options.length.target 2 -> 3, rollout.n 2 -> 4, trainer.steps 2 -> 9"
    )


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        (
            ["algorithm.advantage=grpo"],
            ["algorithm.advantage=gae"],
            r"algorithm\.advantage was grpo and is gae: the checkpoint has no critic",
        ),
        (
            ["algorithm.kl.where=none"],
            ["algorithm.kl.where=reward"],
            r"algorithm\.kl\.where was none and is reward: the checkpoint has no reference",
        ),
        (
            ["algorithm.kl_coef=0"],
            ["algorithm.kl_coef=0.1"],
            r"algorithm\.kl_coef was 0.0 and is 0.1: the checkpoint has no reference",
        ),
    ],
)
def test_a_role_that_the_checkpoint_lacks_is_named_by_its_key(
    tmp_path: Path, then: list[str], now: list[str], words: str
) -> None:
    _saved(tmp_path, _config(*then))
    with pytest.raises(UsageError, match=words):
        _checked(tmp_path, *now)
    # The other way round the checkpoint has more than is needed.
    (tmp_path / "checkpoints").rename(tmp_path / "old")
    _saved(tmp_path, _config(*now))
    assert _checked(tmp_path, *then).startswith("changed since step 2: algorithm.")


def test_a_reference_that_is_a_checkpoint_may_come_and_go(tmp_path: Path) -> None:
    """Nothing of it changed before the first step."""
    _saved(tmp_path, _config("warmup.steps=0", "algorithm.kl.where=none"))
    assert "kl.where none -> reward" in _checked(tmp_path, "warmup.steps=0")


def test_fixed_keys_are_keys() -> None:
    for name in _FIXED:
        assert any(key == name or key.startswith(f"{name}.") for key in entries()), name


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], AdaptiveKL(coef=0.04, target=6.0, horizon=100.0)),  # what it has reached stays
        (["algorithm.kl.target=3"], AdaptiveKL(coef=0.04, target=3.0, horizon=100.0)),
        (["algorithm.kl_coef=0.5"], AdaptiveKL(coef=0.5, target=6.0, horizon=100.0)),
        (["algorithm.kl.controller=fixed"], FixedKL(coef=0.02)),
    ],
)
def test_a_controller_goes_on_with_what_was_changed(overrides: list[str], expected: Any) -> None:
    base = [
        "algorithm.kl.controller=adaptive",
        "algorithm.kl.horizon=100",
        "algorithm.kl_coef=0.02",
    ]
    then, saved = flat(_config(*base)), {"coef": 0.04, "target": 6.0, "horizon": 100.0}
    assert resumed_controller(_config(*base, *overrides), saved, then) == expected


def test_a_fixed_controller_takes_what_the_config_says() -> None:
    then = flat(_config())
    assert resumed_controller(_config("algorithm.kl_coef=0.5"), {"coef": 0.01}, then).coef == 0.5
    adaptive = resumed_controller(
        _config("algorithm.kl.controller=adaptive", "algorithm.kl_coef=0.3"), {"coef": 0.01}, then
    )
    assert adaptive == AdaptiveKL(coef=0.3)
