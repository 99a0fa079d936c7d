"""`hybridengine train-reward`: a model that prefers what the pairs prefer, and then scores."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hybridengine.rlhf.config.loading import load_pairs_config
from hybridengine.rlhf.logging.metrics import find_metric
from hybridengine.rlhf.trainer.reward_run import train_reward

pytestmark = [pytest.mark.python, pytest.mark.slow]

_MODEL = (
    "{model_type: qwen2, hidden_size: 24, intermediate_size: 40, num_hidden_layers: 1,"
    " num_attention_heads: 2, num_key_value_heads: 2, vocab_size: 128}"
)


def _check_lines(lines: list[str], folder: str) -> None:
    assert lines[:3] == [
        folder,
        "reward model on 2 ranks: 50 pairs, 25 of them held out, 30 steps",
        "evaluation before the first step: loss 0.693, accuracy 50.0%",
    ]
    assert lines[3].split() == ["step", "loss", "accuracy", "grad", "time"]
    assert lines[4].split()[:3] == ["1", "0.6931", "50.0%"]
    assert lines[10].startswith("evaluation after step 6: loss 0.")
    assert re.fullmatch(
        r"loss 0\.\d{3}, 100\.0% of 25 held-out pairs in the right order, 30 steps, \d+ s",
        lines[-6],
    )
    assert lines[-5] == "all steps are done"
    named = [line.split()[0].removeprefix(f"{folder}/") for line in lines[-4:]]
    assert named == ["accuracy.png", "metrics.jsonl", "summary.json", "hf"]


def test_what_was_chosen_scores_higher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [
        {"prompt": f"{i}+{k}?", "chosen": f"yes {i + k}", "rejected": f"no {i + k}"}
        for i in range(10)
        for k in range(5)
    ]
    train, held_out = pairs[::2], pairs[1::2]
    for name, rows in (("train", train), ("eval", held_out)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    config = load_pairs_config(
        [
            f"model.config={_MODEL}",
            f"data.train_files=[{tmp_path}/train.jsonl]",
            f"data.eval_files=[{tmp_path}/eval.jsonl]",
            "data.train_batch_size=12",
            "critic.lr=0.01",
            "trainer.epochs=10",
            "trainer.ranks=2",
            "trainer.loggers=[jsonl, console]",
            "cluster.cpus_per_rank=0.5",
            f"run.dir={tmp_path}",
            "run.name=rm",
        ]
    )
    assert train_reward(config) == 0
    folder = tmp_path / "rm"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 30  # 25 pairs in 3 batches, 10 times
    assert summary["accuracy"] == 1.0 and summary["loss"] < 0.3
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {name for row in rows for name in row if find_metric(name) is None} == {"step"}
    assert [row["step"] for row in rows] == list(range(31))
    assert [row["step"] for row in rows if "eval/loss" in row] == [0, 6, 12, 18, 24, 30]
    assert rows[0]["eval/loss"] == pytest.approx(0.6931, abs=1e-3)  # the head begins at 0
    assert rows[1]["reward_model/loss"] == pytest.approx(0.6931, abs=1e-3)
    assert summary["held_out"] == 25 and summary["loss"] == rows[-1]["eval/loss"]
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    _check_lines(capsys.readouterr().out.splitlines(), str(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder / "hf")
    model = AutoModelForSequenceClassification.from_pretrained(folder / "hf")
    scores = []
    for answer in ("yes 7", "no 7"):
        ids = [*tokenizer("3+4?")["input_ids"], *tokenizer(answer)["input_ids"], 2]
        with torch.no_grad():
            scores.append(float(model(input_ids=torch.tensor([ids])).logits))
    assert scores[0] > scores[1] + 0.5
