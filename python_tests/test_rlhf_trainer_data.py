"""What a run needs of its data is looked at before it starts, and nothing that it does not need."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rlhf_local_roles
from rlhf_small_run import SMALL

from hybridengine import UsageError
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.roles.tokenizer import open_tokenizer
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.evaluation import eval_prompts, open_held_out
from hybridengine.rlhf.trainer.prompts import Prompts
from hybridengine.rlhf.trainer.source import Source, open_source
from hybridengine.rlhf.trainer.step import Steps
from hybridengine.rlhf.trainer.warmup import warm_up

pytestmark = pytest.mark.python

_EXACT = ["reward.functions=[exact_match]", "reward.options={}"]
_LENGTH: list[str] = []  # that of the small run, which compares with nothing
_OFFLINE = ["data.mode=offline", "algorithm.advantage=grpo"]


def _config(tmp_path: Path, row: dict[str, Any], *overrides: str) -> Any:
    good = {"prompt": "1+1=", "ground_truth": "2", "response": "2"}
    lines = [{key: good[key] for key in good if key in row}, row]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ["data.gym.name=null", f"data.train_files=[{tmp_path}/data.jsonl]", "warmup.steps=0"]
    return load_config([*SMALL, "trainer.ranks=1", *files, *overrides])


def _source(config: Any) -> Source:
    return open_source(config, open_tokenizer(config))


def _refused(config: Any) -> str:
    with pytest.raises(UsageError) as caught:
        open_held_out(config, _source(config).encoder)
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "overrides"),
    [
        ({"ground_truth": 2}, _EXACT),
        ({"ground_truth": ["2", "two"]}, _EXACT),
        ({"ground_truth": False}, _EXACT),
        ({"ground_truth": ""}, _EXACT),
        ({"reward_model": {"ground_truth": "2"}}, _EXACT),
        ({"ground_truth": None}, _LENGTH),
        ({}, _LENGTH),
        ({}, ["run.resume=true", "run.name=r", "warmup.steps=3"]),
        ({"response": "2"}, ["warmup.steps=3"]),
        ({"ground_truth": "2"}, ["warmup.steps=3", *_EXACT]),
        ({"response": "2"}, _OFFLINE),
        ({"response": "2", "ground_truth": 2}, [*_OFFLINE, *_EXACT]),
    ],
)
def test_data_that_a_run_can_use(tmp_path: Path, row: Any, overrides: list[str]) -> None:
    row = {"prompt": "1+1=", **row}
    lines = [row] * 2
    config = _config(tmp_path, row, *overrides)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert _source(config).counts.kept == 2


@pytest.mark.parametrize(
    ("row", "overrides", "reward"),
    [
        ({"ground_truth": None}, _EXACT, "exact_match"),
        ({"ground_truth": None}, ["reward.functions=[length, math]"], "math"),
        ({"answer": "2", "response": "2"}, _EXACT, "exact_match"),
        ({"answer": "2", "response": "2"}, [*_OFFLINE, *_EXACT], "exact_match"),
    ],
)
def test_a_ground_truth_that_a_reward_compares_with(
    tmp_path: Path, row: Any, overrides: list[str], reward: str
) -> None:
    line = 2 if "ground_truth" in row else 1
    expected = (
        f"{tmp_path}/data.jsonl:{line}: there is no ground truth, which reward {reward!r} compares "
        "with. Set data.ground_truth_key to the column that has it, or reward.functions to others."
    )
    assert _refused(_config(tmp_path, {"prompt": "1+1=", **row}, *overrides)) == expected


def test_a_ground_truth_is_needed_in_evaluations_too(tmp_path: Path) -> None:
    (tmp_path / "eval.jsonl").write_text('{"prompt": "1+1="}\n')
    files = f"data.eval_files=[{tmp_path}/eval.jsonl]"
    config = _config(tmp_path, {"prompt": "1+1=", "ground_truth": "2"}, *_EXACT, files)
    assert _refused(config).startswith(f"{tmp_path}/eval.jsonl:1: there is no ground truth")


def test_a_reward_of_ones_own_may_need_one(tmp_path: Path) -> None:
    text = "def score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
    (tmp_path / "mine.py").write_text(text)
    mine = f"reward.function={tmp_path}/mine.py:score"
    config = _config(tmp_path, {"prompt": "1+1="}, mine)
    assert _source(config).counts.kept == 2
    (tmp_path / "mine.py").write_text("NEEDS_GROUND_TRUTH = True\n" + text)
    assert "which reward 'score' compares with" in _refused(config)


@pytest.mark.parametrize("ground_truth", [2, ["2", "two"], None])
def test_a_warm_up_needs_answers(tmp_path: Path, ground_truth: Any) -> None:
    row = {"prompt": "1+1=", "ground_truth": ground_truth}
    assert _refused(_config(tmp_path, row, "warmup.steps=3")) == (
        f"warmup.steps needs answers: {tmp_path}/data.jsonl:2 has neither a response nor a text as "
        "ground truth. Set warmup.steps=0."
    )


@pytest.mark.slow
def test_ground_truths_that_are_no_text_reach_the_reward(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {2: 1.0, ('2', 'two'): 2.0, None: 4.0}[\n"
        "        tuple(ground_truth) if isinstance(ground_truth, list) else ground_truth]\n"
    )
    rows = [{"ground_truth": 2}, {"ground_truth": ["2", "two"]}, {}]
    mine = ["reward.functions=[]", "reward.options={}"]
    config = _config(tmp_path, {}, f"reward.function={tmp_path}/mine.py:score", *mine)
    lines = [json.dumps({"prompt": "1+1=", **row}) + "\n" for row in rows]
    (tmp_path / "data.jsonl").write_text("".join(lines))
    source = Prompts(config, open_tokenizer(config))
    with rlhf_local_roles.one_rank(tmp_path) as context:
        roles = rlhf_local_roles.local_roles(context, config)
        steps = Steps(config, roles)
        assert warm_up(config, roles.actor, source.encoder, source.train) is None
        steps.sync(0, Clock())
        scored = steps.respond(eval_prompts(source.train), Clock())
        roles.reward.close()
    assert scored.task_scores == [1.0, 2.0, 4.0]
    assert scored.errors == 0


def test_a_warm_up_takes_no_cut_answer_for_a_whole_one(tmp_path: Path) -> None:
    row = {"prompt": "1+1=", "response": "22", "truncated": True}
    config = _config(tmp_path, row, "warmup.steps=1", "warmup.batch_size=2", *_LENGTH)
    seen: list[Any] = []

    def supervise(parts: list[Any]) -> list[dict[str, float]]:
        seen.extend(parts)
        return [{"loss": 0.0}]

    actor: Any = SimpleNamespace(num_places=1, supervise=supervise, end_warm_up=lambda: None)
    source = Prompts(config, open_tokenizer(config))
    warm_up(config, actor, source.encoder, source.train)
    ends = sorted(ids.tolist()[-2:] for ids in seen[0]["ids"].split(seen[0].lengths.tolist()))
    assert ends == [[50, 2], [50, 50]]  # "2" and eos; "22"
