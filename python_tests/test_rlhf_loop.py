"""Runs of the trainer on one rank: every algorithm learns."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import rlhf_local_roles
import yaml

from hybridengine import UsageError
from hybridengine.rlhf.batch import as_rows
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.logging import Sinks
from hybridengine.rlhf.model_files import check_models, trained_types
from hybridengine.rlhf.roles.tokenizer import open_tokenizer
from hybridengine.rlhf.trainer.checkpoints import Checkpoints
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.evaluation import open_held_out
from hybridengine.rlhf.trainer.loop import Loop
from hybridengine.rlhf.trainer.preflight import check_attention
from hybridengine.rlhf.trainer.run import with_steps
from hybridengine.rlhf.trainer.source import open_source
from hybridengine.rlhf.trainer.step import Steps

pytestmark = [pytest.mark.python, pytest.mark.slow]

_MODEL = (
    "{model_type: qwen2, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1,"
    " num_attention_heads: 2, num_key_value_heads: 2, vocab_size: 128}"
)
_REWARD = """
def lower_case(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str.islower())
"""
# A bandit: one prompt, one token, which pays if it is one of 26 letters out of 128 characters.
_BANDIT = [
    "preset=none",
    f"model.config={_MODEL}",
    "data.train_batch_size=16",
    "data.max_prompt_length=4",
    "data.max_response_length=1",
    "rollout.max_model_len=8",
    "rollout.n=8",
    "actor.ppo_mini_batch_size=8",
    "actor.ppo_epochs=2",
    "actor.lr=0.01",
    "critic.lr=0.01",
    "critic.ppo_epochs=2",
    "reward.functions=[]",
    "trainer.ranks=1",
    "trainer.eval_before=false",
]


def _config(tmp_path: Path, *overrides: str) -> Config:
    (tmp_path / "reward.py").write_text(_REWARD)
    data = tmp_path / "data.jsonl"
    if not data.exists():
        rows = [{"prompt": "?", "ground_truth": "", "data_source": "bandit"}] * 16
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [f"data.train_files=[{data}]", f"reward.function={tmp_path}/reward.py:lower_case"]
    return load_config([*_BANDIT, *files, *overrides])


class _Run:
    def __init__(self, config: Config, context: Any, folder: Path) -> None:
        tokenizer = open_tokenizer(config)
        self.source = open_source(config, tokenizer)
        config = with_steps(config, self.source.steps_per_epoch)
        self.roles = rlhf_local_roles.local_roles(context, config)
        steps = Steps(config, self.roles)
        checkpoints = Checkpoints(folder, self.roles.saved(config), config.trainer.keep_checkpoints)
        held_out = open_held_out(config, self.source.encoder)
        self.loop = Loop(
            config, steps, self.source, checkpoints, held_out=held_out, began=time.monotonic()
        )
        if self.roles.reference is not None:
            self.roles.reference.freeze()
        self._steps = steps
        self.resync()

    def resync(self) -> None:
        if self.roles.rollout is not None:
            self._steps.sync(self.loop.step, Clock())

    def rewards(self) -> list[float]:
        self.source.begin(self._steps)
        self.loop.run(Sinks([]))
        self.roles.reward.close()
        return [metrics["reward/mean"] for metrics in self.loop.history]


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.advantage=gae"],
        ["algorithm.advantage=gae", "algorithm.clip_ratio_c=3", "algorithm.kl_coef=0"],
        ["algorithm.advantage=grpo", "algorithm.loss_aggregation=seq-mean-token-mean"],
        ["algorithm.advantage=rloo", "algorithm.loss_aggregation=seq-mean-token-sum"],
        ["algorithm.advantage=reinforce++"],
        ["algorithm.advantage=remax", "algorithm.kl.where=loss", "algorithm.kl.estimator=k3"],
        [
            "algorithm.advantage=grpo",
            "algorithm.clip_ratio_high=0.28",
            "algorithm.clip_ratio_c=10",
            "algorithm.group_filter=dapo",
            "algorithm.kl.where=none",
        ],
        ["algorithm.advantage=grpo", "algorithm.policy_loss=gspo"],
        ["algorithm.advantage=grpo", "algorithm.policy_loss=cispo"],
    ],
    ids=lambda overrides: " ".join(each.split(".", 1)[1] for each in overrides),
)
def test_every_algorithm_finds_what_pays(tmp_path: Path, overrides: list[str]) -> None:
    config = _config(tmp_path, "trainer.steps=25", *overrides)
    with rlhf_local_roles.one_rank(tmp_path) as context:
        run = _Run(config, context, tmp_path)
        rewards = run.rewards()
    assert rewards[0] < 0.4
    assert sum(rewards[-3:]) / 3 > 0.85
    assert all(metrics.get("actor/ratio_max_error", 0) == 0 for metrics in run.loop.history)


_AHEAD = ["trainer.staleness=1", "trainer.placement=standalone"]


def test_one_step_off_learns_from_what_the_weights_before_the_last_said(tmp_path: Path) -> None:
    config = _config(tmp_path, "trainer.steps=30", "algorithm.advantage=grpo", *_AHEAD)
    found = []
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        with rlhf_local_roles.one_rank(tmp_path / part) as context:
            run = _Run(config, context, tmp_path / part)
            found.append(run.rewards())
    assert found[0] == found[1]  # whichever of the two was faster
    assert sum(found[0][-3:]) / 3 > 0.85
    steps = run.loop.history
    assert [metrics["rollout/staleness"] for metrics in steps] == [0.0] + [1.0] * 29
    # Old log-probs are of the weights that train, and the weight of a token makes up for it.
    assert steps[0]["actor/mismatch_max"] < 1e-5 < steps[1]["actor/mismatch_max"]
    assert steps[0]["actor/correction"] == pytest.approx(1) != steps[1]["actor/correction"]
    assert all(metrics["actor/ratio_max_error"] == 0 for metrics in steps)


def test_one_step_off_goes_on_with_the_prompts_that_nobody_learned_from(tmp_path: Path) -> None:
    config = _config(tmp_path, "trainer.steps=3", "algorithm.advantage=grpo", *_AHEAD)
    with rlhf_local_roles.one_rank(tmp_path) as context:
        run = _Run(config, context, tmp_path)
        stopped = _Run(config, context, tmp_path)
        run.rewards()
        stopped.loop.config.trainer.steps = 4  # the fourth batch is being made when it is saved
        states = []
        stopped.loop.save = lambda: states.append(stopped.loop._batches.state_dict())
        stopped.loop.config.trainer.save_interval = 3
        stopped.loop.run(Sinks([]))
    assert states == [run.loop._batches.state_dict()]


def test_what_fails_while_it_is_made_ahead_ends_the_run(tmp_path: Path) -> None:
    config = _config(tmp_path, "trainer.steps=3", "algorithm.advantage=grpo", *_AHEAD)
    with rlhf_local_roles.one_rank(tmp_path) as context:
        run = _Run(config, context, tmp_path)
        rollouts, calls = run.source.rollouts, []

        def fails(*arguments: Any) -> Any:
            calls.append(threading.current_thread().name)
            if len(calls) == 3:
                raise UsageError("the reward is gone")
            return rollouts(*arguments)

        run.source.rollouts = fails
        with pytest.raises(UsageError, match="the reward is gone"):
            run.rewards()
    assert calls == ["MainThread", "next batch", "next batch"] and run.loop.step == 2


def test_a_step_of_nothing_but_masked_responses_changes_nothing(tmp_path: Path) -> None:
    cut = ["rollout.ignore_eos=true", "algorithm.truncated=mask"]
    config = _config(tmp_path, "trainer.steps=1", *cut)
    with rlhf_local_roles.one_rank(tmp_path) as context:
        run = _Run(config, context, tmp_path)
        run.rewards()
    (metrics,) = run.loop.history
    assert metrics["rollout/truncated"] == 1
    assert metrics["actor/updates"] == metrics["critic/updates"] == metrics["actor/tokens"] == 0


@pytest.mark.parametrize("model_type", trained_types())
def test_every_family_of_the_list_trains(tmp_path: Path, model_type: str) -> None:
    facts = yaml.safe_load(_MODEL) | {"model_type": model_type, "head_dim": 8, "pad_token_id": 0}
    padded = ["actor.sequence_packing=false", "critic.sequence_packing=false"]
    model = f"model.config={json.dumps(facts)}"
    more = padded if model_type == "gemma2" else []  # it caps the logits of its attention
    config = _config(tmp_path, "trainer.steps=2", model, *more)
    check_models(config)
    check_attention(config)
    with rlhf_local_roles.one_rank(tmp_path) as context:
        run = _Run(config, context, tmp_path)
        run.rewards()
    assert [metrics["actor/updates"] for metrics in run.loop.history] == [4, 4]
    assert all(metrics["actor/ratio_max_error"] == 0 for metrics in run.loop.history)


def test_offline_responses_teach_too(tmp_path: Path) -> None:
    responses = [chr(code) for code in range(33, 127)]
    rows = [
        {"prompt": prompt, "response": text, "ground_truth": "", "data_source": "bandit"}
        for prompt in "?!"
        for text in responses
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = _config(
        tmp_path,
        "data.mode=offline",
        "data.train_batch_size=2",
        "data.max_response_length=2",  # a letter and eos
        "actor.ppo_mini_batch_size=2",
        "algorithm.advantage=grpo",
        "algorithm.kl.where=none",
        "trainer.steps=20",
    )
    with rlhf_local_roles.one_rank(tmp_path) as context:
        run = _Run(config, context, tmp_path)
        before = _share_of_lower_case(run.roles.actor.role)
        rewards = run.rewards()
        after = _share_of_lower_case(run.roles.actor.role)
    assert rewards == pytest.approx([26 / 94] * 20)  # nothing new was sampled
    # The old log-probs stay those of the start, so that the clip holds the policy near it.
    assert before < 0.25 and after > 1.7 * before


def _share_of_lower_case(actor: Any) -> float:
    """Of the policy's answers to "?"."""
    letters = [[code] for code in range(ord("a"), ord("z") + 1)]
    rows = as_rows([[ord("?")]] * len(letters), letters)
    return float(actor.backend.log_probs(rows)[rows["mask"]].exp().sum())


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.steps=1"],
        ["trainer.steps=1", "trainer.eval_before=true", "data.eval_files={files}"],
        ["trainer.steps=1", "algorithm.advantage=grpo", "algorithm.group_filter=dapo"],
        ["trainer.steps=1", "data.mode=offline", "data.max_response_length=2"],
    ],
    ids=["step", "evaluation", "filtered", "offline"],
)
def test_rewards_that_fail_for_all_samples_end_the_run(
    tmp_path: Path, overrides: list[str]
) -> None:
    row = {"prompt": "?", "response": "a", "ground_truth": "4", "data_source": "bandit"}
    (tmp_path / "data.jsonl").write_text((json.dumps(row) + "\n") * 16)
    files = f"[{tmp_path}/data.jsonl]"
    config = _config(tmp_path, *[each.format(files=files) for each in overrides])
    text = _REWARD.replace("return", "return {}['key'] if ground_truth else")
    (tmp_path / "reward.py").write_text(text)
    with rlhf_local_roles.one_rank(tmp_path) as context:
        run = _Run(config, context, tmp_path)
        with pytest.raises(UsageError) as caught:
            run.rewards()
    words = str(caught.value)
    assert "rewards failed for all 1" in words  # 128, 16
    assert "data.jsonl:" in words and "raised KeyError at " in words and "reward.py:3" in words
    assert run.loop.history == []


def test_rewards_that_fail_for_some_samples_cost_those_and_are_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = _config(tmp_path, "trainer.steps=2", "algorithm.advantage=grpo")
    text = _REWARD.replace("return", "return None if solution_str.islower() else")
    (tmp_path / "reward.py").write_text(text)
    with rlhf_local_roles.one_rank(tmp_path) as context:
        run = _Run(config, context, tmp_path)
        assert run.rewards() == [0.0, 0.0]
    assert all(0 < metrics["reward/errors"] < 128 for metrics in run.loop.history)
    lines = [line for line in capfd.readouterr().err.splitlines() if "failed" in line]
    count = int(run.loop.history[0]["reward/errors"])
    assert len(lines) == 1 and lines[0].startswith(
        f"hybridengine: {count} of 128 samples have reward 0 since it failed; the first: "
        f"{tmp_path}/data.jsonl:"
    )
