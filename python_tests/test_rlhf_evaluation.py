"""Evaluations: several sets, several responses a prompt, pass@k, means by data source."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rlhf_local_roles
from rlhf_small_run import SMALL

from hybridengine import UsageError
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.config.records import EvalSet
from hybridengine.rlhf.logging.metrics import find_metric
from hybridengine.rlhf.roles.tokenizer import open_tokenizer
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.evaluation import (
    HeldOut,
    evaluated,
    metrics_of,
    open_held_out,
    pass_at_k,
)
from hybridengine.rlhf.trainer.prompts import Prompts
from hybridengine.rlhf.trainer.step import Steps

_EXACT = ["reward.functions=[exact_match]", "reward.options={}"]

pytestmark = pytest.mark.python


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_choices_with_a_right_one(n: int) -> None:
    for right in range(n + 1):
        passes = [1] * right + [0] * (n - right)
        for k in range(1, n + 1):
            chosen = [max(some) for some in itertools.combinations(passes, k)]
            expected = sum(chosen) / len(chosen)
            assert pass_at_k(n, right, k) == pytest.approx(expected, abs=1e-12)


def _prompt(source: str) -> Any:
    return SimpleNamespace(sample=SimpleNamespace(data_source=source))


def test_numbers_are_by_prompt_and_by_source() -> None:
    prompts = [_prompt("gsm8k"), _prompt("openai/math"), _prompt("gsm8k")]
    held_out = HeldOut("hard", prompts, EvalSet(files=["a"], n=3, temperature=1.0))
    scored: Any = SimpleNamespace(
        task_scores=[1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.9, 1.0, 2.0],
        responses=[1, 2, 3, 4, 5, 6, 7, 8, 9],
        truncated=[False, True, False, False, True, False, False, False, True],
        errors=2,
    )
    found = metrics_of(held_out, scored, pass_score=1.0)
    assert found == pytest.approx(
        {
            "eval/hard/reward": 5.4 / 9,
            "eval/hard/reward/gsm8k": 5.4 / 6,
            "eval/hard/reward/openai_math": 0.0,
            "eval/hard/errors": 2.0,
            "eval/hard/length": 5.0,
            "eval/hard/truncated": 3 / 9,
            "eval/hard/pass@1": (1 / 3 + 0 + 2 / 3) / 3,
            "eval/hard/pass@2": (2 / 3 + 0 + 1) / 3,
            "eval/hard/pass@3": 2 / 3,
        }
    )
    assert all(find_metric(name) is not None for name in found)
    one = HeldOut("", prompts[:1], EvalSet(files=["a"]))
    scored = SimpleNamespace(task_scores=[0.9], responses=[3], truncated=[False], errors=0)
    assert metrics_of(one, scored, pass_score=0.9) == {
        "eval/reward": 0.9,
        "eval/errors": 0.0,
        "eval/length": 3.0,
        "eval/truncated": 0.0,
        "eval/pass@1": 1.0,
    }


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["evaluation.n=8"], r"evaluation\.n is 8, but with evaluation\.temperature 0 all"),
        (["eval_sets={a: {files: [x], n: 2}}"], r"eval_sets\.a\.n is 2, but with eval_sets\.a\.te"),
        (["eval_sets={a: {files: []}}"], r"eval_sets\.a\.files is empty"),
        (["eval_sets={a/b: {files: [x]}}"], r"eval_sets has the name 'a/b'"),
        (["eval_sets={a: {files: [x], m: 2}}"], r"eval_sets\.a\.m is no key"),
        (["eval_sets={a: {n: 2}}"], r"eval_sets\.a\.files"),
        (
            ["data.mode=offline", "data.gym.name=null", "data.train_files=a", "data.eval_files=b"],
            r"data\.eval_files is set, but with data\.mode=offline nothing generates",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_named(overrides: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_config([*SMALL, *overrides])


def _sums(path: Path, sources: list[str]) -> None:
    rows = [
        {"prompt": f"{i} + 1 =", "ground_truth": str(i + 1), "data_source": source}
        for i, source in enumerate(sources)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_sets_are_answered_as_they_ask(tmp_path: Path) -> None:
    """The weights stay, so that a second evaluation gives the same numbers."""
    _sums(tmp_path / "few.jsonl", ["one", "two", "one"])
    sets = f"eval_sets={{few: {{files: [{tmp_path}/few.jsonl], n: 4, temperature: 1.5}}}}"
    own = ["reward.options={length: {target: 4}}", "evaluation.pass_score=0.5"]
    config = load_config([*SMALL, "trainer.ranks=1", "warmup.steps=0", sets, *own])
    with rlhf_local_roles.one_rank(tmp_path) as context:
        source = Prompts(config, open_tokenizer(config))
        held_out = open_held_out(config, source.encoder)
        steps = Steps(config, rlhf_local_roles.local_roles(context, config))
        steps.sync(0, Clock())
        first, again = ([evaluated(steps, each) for each in held_out] for _ in range(2))
        steps.roles.reward.close()
    assert [(each.name, len(each.prompts)) for each in held_out] == [("", 5), ("few", 3)]
    assert first == again
    plain, few = first
    assert set(plain) == {
        f"eval/{name}" for name in ("reward", "errors", "length", "truncated", "pass@1")
    }
    names = ("reward", "reward/one", "reward/two", "errors", "length", "truncated")
    assert set(few) == {f"eval/few/{name}" for name in (*names, "pass@1", "pass@2", "pass@4")}
    assert few["eval/few/reward"] == pytest.approx(
        (2 * few["eval/few/reward/one"] + few["eval/few/reward/two"]) / 3
    )
    assert 0 < few["eval/few/pass@1"] <= few["eval/few/pass@2"] <= few["eval/few/pass@4"] <= 1


def test_a_set_needs_what_rewards_compare_with(tmp_path: Path) -> None:
    (tmp_path / "few.jsonl").write_text('{"prompt": "1 + 1 ="}\n')
    sets = f"eval_sets={{few: {{files: [{tmp_path}/few.jsonl]}}}}"
    config = load_config([*SMALL, "warmup.steps=0", *_EXACT, sets])
    source = Prompts(config, open_tokenizer(config))
    with pytest.raises(UsageError, match=r"few\.jsonl:1: there is no ground truth"):
        open_held_out(config, source.encoder)
