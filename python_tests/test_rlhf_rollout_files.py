"""Rollouts as files: what a run writes of them, and that an offline run reads the same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import rlhf_local_roles
import torch
from rlhf_small_run import SMALL

from hybridengine import UsageError
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import drop_groups
from hybridengine.rlhf.roles.rollout_file import RolloutFile
from hybridengine.rlhf.roles.tokenizer import open_tokenizer
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.evaluation import eval_prompts
from hybridengine.rlhf.trainer.offline import Offline
from hybridengine.rlhf.trainer.prompts import Prompts
from hybridengine.rlhf.trainer.step import Steps

pytestmark = pytest.mark.python

_ONE = ["trainer.ranks=1", "warmup.steps=0"]
_EOS, _TWO = 2, ord("2")


def _records(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def _offline(tmp_path: Path, rows: list[dict[str, Any]] | Path, *overrides: str) -> Offline:
    path = rows
    if isinstance(rows, list):
        path = tmp_path / "data.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ["data.mode=offline", "data.gym.name=null", f"data.train_files={path}"]
    config = load_config([*SMALL, *_ONE, "algorithm.advantage=grpo", *files, *overrides])
    return Offline(config, open_tokenizer(config))


def _read(tmp_path: Path, rows: list[dict[str, Any]] | Path, *overrides: str) -> Batch:
    source = _offline(tmp_path, rows, *overrides)
    return source._batch(list(range(source.counts.kept)))


def _refused(tmp_path: Path, row: dict[str, Any], *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        _offline(tmp_path, [{"prompt": "1+1=", "response": "2", **row}], *overrides)
    return str(caught.value)


def _sampled(tmp_path: Path, config: Config) -> None:
    """Two draws of a run, with an evaluation and greedy baselines between them."""
    source = Prompts(config, open_tokenizer(config))
    with rlhf_local_roles.one_rank(tmp_path) as context:
        roles = rlhf_local_roles.local_roles(context, config)
        steps = Steps(config, roles)
        steps.sync(5, Clock())
        for _ in range(2):
            scored, _ = source.rollouts(steps, Clock())
            source.baselines(steps, scored, Clock())
            steps.respond(eval_prompts(source.train), Clock(), {"greedy": True})
        roles.reward.close()


def test_what_a_run_writes_is_what_an_offline_run_reads(tmp_path: Path) -> None:
    named = ["data.prompt_key=question", "data.response_key=answer"]
    run = [f"run.dir={tmp_path}", "run.name=r", "trainer.save_rollouts=true", *named]
    _sampled(tmp_path, load_config([*SMALL, *_ONE, *run, "algorithm.advantage=remax"]))
    rows = _records(tmp_path / "r" / "rollouts")
    assert [row["sample_id"] for row in rows] == list(range(40))
    assert [row["group"] for row in rows] == [sample // 2 for sample in range(40)]
    ended = [row["response_ids"][-1] == _EOS for row in rows]
    assert [row["truncated"] for row in rows] == [not each for each in ended]
    assert 0 < sum(ended) < 40
    assert all(row["weight_versions"] == [5] for row in rows)
    batch = _read(tmp_path, tmp_path / "r" / "rollouts", *named)
    lengths = batch.lengths.tolist()
    columns = (batch[name].split(lengths) for name in ("ids", "mask", "rollout_log_probs"))
    for row, ids, mask, sampled in zip(rows, *columns, strict=True):
        prompt = len(row["prompt_ids"])
        assert ids.tolist() == row["prompt_ids"] + row["response_ids"]
        assert mask.tolist() == [False] * prompt + [True] * len(row["response_ids"])
        wanted = torch.tensor([0.0] * prompt + row["log_probs"])
        assert torch.equal(sampled, wanted) and bool((wanted[prompt:] < 0).all())
    assert batch["truncated"].tolist() == [row["truncated"] for row in rows]
    assert batch["response"] == [row["answer"] for row in rows]
    assert set(rows[0]) >= {"ground_truth", "data_source", "extra", "score", "response_mask"}


def test_numbers_and_masks_of_a_row(tmp_path: Path) -> None:
    log_probs = torch.tensor([0.0, -0.1, 0.0, -1e-7])
    batch = Batch(
        torch.tensor([4]),
        {
            "ids": torch.tensor([50, 51, 52, _EOS]),
            "mask": torch.tensor([False, True, False, True]),
            "rollout_log_probs": log_probs,
            "weight_version": torch.tensor([-1, 3, -1, 4]),
        },
        {
            "prompt_length": torch.tensor([1]),
            "truncated": torch.tensor([False]),
            "sample_id": torch.tensor([7]),
            "group": torch.tensor([3]),
        },
        {name: ["x"] for name in ("prompt", "response", "ground_truth", "data_source", "extra")},
    )
    file = RolloutFile(tmp_path / "rollouts" / "rank_0.jsonl", load_config(SMALL).data)
    file.add(batch, [0.5])
    file.close()
    (row,) = _records(tmp_path / "rollouts")
    assert row["response_mask"] == [1, 0, 1] and row["weight_versions"] == [3, 4]
    assert row["log_probs"] == [-0.1, 0.0, -1e-7]  # as short as float32 has them
    found = _read(tmp_path, tmp_path / "rollouts")
    assert found["mask"].tolist() == batch["mask"].tolist()
    assert torch.equal(found["rollout_log_probs"], log_probs)


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({}, [_TWO, _EOS]),
        ({"truncated": False}, [_TWO, _EOS]),
        ({"truncated": True}, [_TWO]),
        ({"response": "2222"}, None),  # with eos it is longer than four
        ({"response": "2222", "truncated": True}, [_TWO] * 4),
        ({"response": "", "truncated": True}, None),
        ({"response": ""}, None),
        ({"prompt_ids": [49], "response_ids": [_TWO, _EOS]}, [_TWO, _EOS]),
        ({"prompt_ids": [49], "response_ids": [_TWO]}, [_TWO]),  # a stop text ended it
        ({"prompt_ids": [49], "response_ids": [_EOS], "response": ""}, [_EOS]),
        ({"prompt_ids": [49], "response_ids": [_TWO] * 5, "response": "22222"}, None),
        ({"prompt_ids": [49] * 17, "response_ids": [_TWO]}, None),
        ({"prompt_ids": None, "response_ids": None, "truncated": None}, [_TWO, _EOS]),
    ],
)
def test_answers_that_end_and_that_were_cut(
    tmp_path: Path, row: dict[str, Any], answer: list[int] | None
) -> None:
    good = {"prompt": "1+1=", "response": "3"}
    batch = _read(tmp_path, [{**good, "response": "2", **row}, good])
    ids = [each.tolist() for each in batch["ids"].split(batch.lengths.tolist())]
    answers = [each[length:] for each, length in zip(ids, batch["prompt_length"], strict=True)]
    assert answers == ([] if answer is None else [answer]) + [[ord("3"), _EOS]]
    if answer is not None:
        assert batch["truncated"].tolist() == [bool(row.get("truncated")), False]
    assert "rollout_log_probs" not in batch


_IDS = {"prompt_ids": [49], "response_ids": [_TWO, _EOS]}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"response_ids": [_TWO]},
            "column 'prompt_ids' holds nothing, no ids, beside 'response_ids'",
        ),
        ({"prompt_ids": [49]}, "column 'response_ids' holds nothing"),
        ({"log_probs": [0.0]}, "column 'prompt_ids' holds nothing, no ids, beside 'log_probs'"),
        ({**_IDS, "response_ids": []}, "column 'response_ids' holds an empty list"),
        ({**_IDS, "prompt_ids": [-1]}, "column 'prompt_ids' holds a value of type list, no ids"),
        ({**_IDS, "prompt_ids": [True]}, "column 'prompt_ids' holds a value of type list, no ids"),
        ({**_IDS, "prompt_ids": "49"}, "column 'prompt_ids' holds a value of type str, no ids"),
        ({**_IDS, "response_mask": [1]}, "has 1 numbers, of which each is to be finite, for 2"),
        ({**_IDS, "response_mask": [0, 0]}, "column 'response_mask' is 0 throughout"),
        ({**_IDS, "log_probs": [0.0, float("nan")]}, "has 2 numbers, of which each is to be"),
        ({**_IDS, "log_probs": [0.0, "x"]}, "not a number a token"),
        ({"truncated": "yes"}, "column 'truncated' holds a value of type str. Give true or false."),
        (
            {**_IDS, "response": "3"},
            "response_ids are '2' to this tokenizer, and the response is '3'",
        ),
        ({**_IDS, "prompt_ids": [128]}, "a token of id 128, and the model has rows for 128"),
    ],
)
def test_rows_that_cannot_be(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    found = _refused(tmp_path, row)
    assert found.startswith(f"{tmp_path}/data.jsonl:1: ") and words in found


def test_a_correction_needs_log_probs(tmp_path: Path) -> None:
    correction = "algorithm.rollout_correction=token"
    words = (
        "data.jsonl:1: there are no log_probs, which algorithm.rollout_correction=token compares"
    )
    assert words in _refused(tmp_path, _IDS, correction)
    rows = [{"prompt": "1+1=", "response": "2", **_IDS, "log_probs": [-0.5, -0.25]}]
    found = _read(tmp_path, rows, correction)
    assert found["rollout_log_probs"].tolist() == [0.0, -0.5, -0.25]


def test_rows_behind_a_checkpoint_are_dropped(tmp_path: Path) -> None:
    lines = [json.dumps({"group": group, "x": group}) + "\n" for group in (0, 1, 1, 2, 3)]
    (tmp_path / "rank_0.jsonl").write_text("".join(lines) + '{"group": 0, "x')
    (tmp_path / "rank_1.jsonl").write_text(lines[4])
    drop_groups(tmp_path, 2)
    assert (tmp_path / "rank_0.jsonl").read_text() == "".join(lines[:3])
    assert (tmp_path / "rank_1.jsonl").read_text() == ""
    drop_groups(tmp_path / "none", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank_0.jsonl", "rank_1.jsonl"]
