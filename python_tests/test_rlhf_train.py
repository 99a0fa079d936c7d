"""`hybridengine train` on a real Ray: the same numbers however ranks and roles are placed."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rlhf_small_run import MODEL, SMALL

from hybridengine import UsageError
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.config.schema import Cluster as ClusterConfig
from hybridengine.rlhf.logging.metrics import find_metric
from hybridengine.rlhf.trainer.failure import NotExported
from hybridengine.rlhf.trainer.run import train
from hybridengine.rlhf.workers import Cluster

pytestmark = [pytest.mark.python, pytest.mark.slow]

_NUMBERS = (
    "reward/mean",
    "rollout/length",
    "actor/loss",
    "actor/grad_norm",
    "actor/ref_kl",
    "actor/entropy",
    "actor/kl",
    "actor/clip_share",
    "critic/loss",
    "critic/grad_norm",
)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One Ray for all runs: a run takes the one that its process uses already."""
    with Cluster.start(ClusterConfig(), num_cpus=4):
        yield


def _run(tmp_path: Path, name: str, *overrides: str) -> list[dict[str, Any]]:
    """The metrics of the steps of a run."""
    config = load_config([*SMALL, f"run.dir={tmp_path}", f"run.name={name}", *overrides])
    assert train(config) == 0
    rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").open()]
    assert {name for row in rows for name in row if find_metric(name) is None} == {"step"}
    return [row for row in rows if "time/step" in row]  # the others are evaluations


def _weights(tmp_path: Path, name: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(tmp_path / name / "hf" / "model.safetensors")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """One rank that does everything."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, _run(folder, "alone", "trainer.ranks=1")


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(["trainer.ranks=2"], marks=pytest.mark.soak),  # three and tp go further
        ["trainer.ranks=3", "actor.max_tokens_per_gpu=40", "critic.max_tokens_per_gpu=30"],
        ["trainer.ranks=2", "rollout.tp_size=2", "actor.sequence_packing=false"],
        [
            "pools.learn={ranks: 2, roles: [actor, rollout, reference]}",
            "pools.judge={ranks: 1, roles: [reward, critic], cpus_per_rank: 0.25}",
        ],
        ["trainer.ranks=1", "trainer.placement=standalone", "trainer.rollout_ranks=2"],
    ],
    ids=["two", "three", "tp", "pools", "standalone"],
)
def test_placement_changes_no_number(
    alone: tuple[Path, list[dict[str, Any]]], tmp_path: Path, overrides: list[str]
) -> None:
    folder, expected = alone
    found = _run(tmp_path, "run", *overrides)
    for mine, theirs in zip(found, expected, strict=True):
        assert {name: mine[name] for name in _NUMBERS} == pytest.approx(
            {name: theirs[name] for name in _NUMBERS}, rel=1e-6, abs=1e-9
        )
    assert found[0]["actor/ratio_max_error"] == 0
    for name, weight in _weights(folder, "alone").items():
        torch.testing.assert_close(_weights(tmp_path, "run")[name], weight, rtol=1e-4, atol=1e-6)


def test_one_step_off_begins_with_the_same_numbers(
    alone: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    pools = ["trainer.placement=standalone", "trainer.ranks=2", "trainer.rollout_ranks=2"]
    found = _run(tmp_path, "run", "trainer.staleness=1", *pools)
    first = alone[1][0]
    assert {name: found[0][name] for name in _NUMBERS} == pytest.approx(
        {name: first[name] for name in _NUMBERS}, rel=1e-6, abs=1e-9
    )
    lags = [row["rollout/staleness"] for row in found]
    assert lags == [0.0] + [1.0] * (len(found) - 1) and len(lags) > 1
    assert all(row["actor/correction"] > 0 and row["time/update"] > 0 for row in found)
    assert "time/waiting" in found[1]


@pytest.mark.soak
def test_groups_divided_over_ranks_change_no_number(tmp_path: Path) -> None:
    grpo = ["algorithm.advantage=grpo", "rollout.n=5", "trainer.steps=1"]
    names = [name for name in _NUMBERS if not name.startswith("critic")]
    expected = _run(tmp_path, "alone", "trainer.ranks=1", *grpo)[0]
    found = _run(tmp_path, "three", "trainer.ranks=3", *grpo)[0]
    assert expected["actor/grad_norm"] > 0
    assert {name: found[name] for name in names} == pytest.approx(
        {name: expected[name] for name in names}, rel=1e-6, abs=1e-9
    )


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a classifier with random weights."""
    import yaml
    from transformers import AutoConfig, AutoModelForSequenceClassification

    facts = yaml.safe_load(MODEL)
    torch.manual_seed(3)
    config = AutoConfig.for_model(facts.pop("model_type"), **facts, num_labels=1)
    model = AutoModelForSequenceClassification.from_config(config)
    torch.nn.init.normal_(model.score.weight)
    folder = tmp_path_factory.mktemp("reward_model")
    model.save_pretrained(folder)
    return folder


@pytest.mark.soak
def test_a_reward_model_may_be_split(tmp_path: Path, reward_model: Path) -> None:
    model = [f"reward_model.path={reward_model}", "reward_model.weight=0.5", "trainer.steps=1"]
    model += ["actor.dtype=float32", "critic.dtype=float32", "rollout.dtype=float32"]
    whole = _run(tmp_path, "whole", "trainer.ranks=1", *model)[0]
    shards = _run(tmp_path, "shards", "trainer.ranks=2", *model)[0]
    split = _run(tmp_path, "split", "trainer.ranks=2", "reward_model.tp_size=2", *model)[0]
    assert abs(whole["reward/mean"] - whole["reward/length"]) > 0.01  # the model has a say
    for found in (shards, split):
        assert found["reward/mean"] == pytest.approx(whole["reward/mean"], rel=1e-5)
        assert found["actor/loss"] == pytest.approx(whole["actor/loss"], rel=1e-3, abs=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize(
    "overrides",
    [
        ["warmup.steps=0", "actor.lora.enable=true", "actor.lora.rank=4", "actor.lr=1e-2"],
        [
            *(f"{role}.dtype=bfloat16" for role in ("actor", "critic", "rollout")),
            *(f"{role}.param_dtype=bfloat16" for role in ("actor", "critic")),
        ],
        [
            "actor.activation_checkpointing=false",
            "rollout.sleep=drop",
            "rollout.reshard_threshold=0.001",
        ],
        ["rollout.top_p=0.9", "algorithm.rollout_correction=token"],
    ],
    ids=["lora", "bfloat16", "offloaded", "top_p"],
)
def test_other_ways_to_train(tmp_path: Path, overrides: list[str]) -> None:
    steps = _run(tmp_path, "run", "trainer.ranks=2", "actor.dtype=float32", *overrides)
    assert len(steps) == 2
    for metrics in steps:
        assert all(math.isfinite(metrics[name]) for name in _NUMBERS)
        assert metrics["reshard/received_bytes"] == metrics["reshard/bound_bytes"] > 0
    assert steps[0]["actor/ratio_max_error"] == 0
    assert steps[0]["actor/ref_kl"] == pytest.approx(0, abs=1e-6)
    assert abs(steps[1]["actor/ref_kl"]) > 1e-6  # it has moved
    assert steps[0]["reshard/offloaded"] == float("reshard_threshold" in overrides[-1])


def test_a_run_goes_on_where_it_stopped(
    alone: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """With the reference that the warm-up made, on another number of ranks."""
    _run(tmp_path, "run", "trainer.ranks=1", "trainer.steps=1", "trainer.save_interval=1")
    resumed = _run(tmp_path, "run", "trainer.ranks=2", "run.resume=true")
    assert [row["step"] for row in resumed] == [1, 2]
    with pytest.raises(UsageError, match=r"has done 1 steps, and trainer\.steps is 1"):
        _run(tmp_path, "run", "trainer.steps=1", "run.resume=true")
    assert {name: resumed[1][name] for name in _NUMBERS} == pytest.approx(
        {name: alone[1][1][name] for name in _NUMBERS}, rel=1e-6, abs=1e-9
    )


def test_an_export_that_fails_is_repeated_by_a_resume(tmp_path: Path) -> None:
    """A reward puts a file where the export will write, after all was tried."""
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\n"
        "def score(data_source, solution_str, ground_truth, extra_info=None):\n"
        f"    Path({str(tmp_path)!r}, 'run', 'hf.partial').touch()\n"
        "    return float(len(solution_str))\n"
    )
    mine = [f"reward.function={tmp_path}/mine.py:score", "trainer.ranks=2", "trainer.steps=1"]
    with pytest.raises(NotExported, match=r"run/hf could not be written: File exists"):
        _run(tmp_path, "run", *mine)
    run = tmp_path / "run"
    assert json.loads((run / "summary.json").read_text())["steps"] == 1
    assert (run / "reward.png").exists() and (run / "samples.jsonl").exists()
    assert not (run / "hf").exists()
    (run / "hf.partial").unlink()
    steps = _run(tmp_path, "run", *mine, "run.resume=true")
    assert [row["step"] for row in steps] == [1]  # nothing was trained again
    assert set(_weights(tmp_path, "run")) >= {"model.embed_tokens.weight", "lm_head.weight"}
    with pytest.raises(UsageError, match="has done 1 steps"):
        _run(tmp_path, "run", *mine, "run.resume=true")
    # A start that fails with its ranks leaves all of it where it is.
    before = sorted(path.name for path in run.iterdir())
    with pytest.raises(UsageError, match="ranks were not placed within"):
        _run(tmp_path, "run", *mine, "trainer.ranks=50", "cluster.placement_timeout_s=1")
    assert sorted(path.name for path in run.iterdir()) == before
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"mine.py", "run"}


def test_kept_rollouts_train_an_offline_run(tmp_path: Path) -> None:
    first = _run(tmp_path, "first", "trainer.ranks=2", "trainer.save_rollouts=true")
    files = sorted((tmp_path / "first" / "rollouts").iterdir())
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted(row["sample_id"] for row in rows) == list(range(40))  # no row of an evaluation
    assert sum(row["score"] for row in rows) > 0
    assert first[0]["reshard/bound_bytes"] > 0
    # As docs/trainer.md has it: nothing is left out, and what was cut stays so.
    offline = [
        *(str(tmp_path / "first" / "config.yaml"), "run.name=offline", "data.mode=offline"),
        *("data.gym.name=null", "warmup.steps=0", f"data.train_files={tmp_path}/first/rollouts"),
        *("algorithm.advantage=grpo", "algorithm.kl.where=none", "trainer.steps=2"),
    ]
    config = load_config(offline)
    assert train(config) == 0
    lines = (tmp_path / "offline" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    tokens = sum(len(row["response_ids"]) for row in rows)
    assert sum(step["rollout/tokens"] for step in steps) == tokens
    assert steps[0]["actor/updates"] > 0 and "reshard/bound_bytes" not in steps[0]
    assert sum(step["rollout/truncated"] for step in steps) > 1
    assert not (tmp_path / "offline" / "rollouts").exists()


def test_what_a_run_leaves(alone: tuple[Path, list[dict[str, Any]]]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = alone[0] / "alone"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["reward_first"] == alone[1][0]["reward/mean"]
    assert summary["reshard_received_over_bound"] is None  # one rank lacks nothing
    assert summary["seconds"] > 0 and math.isfinite(summary["seconds"])
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 5 and set(samples[0]) == {"prompt", "ground_truth", "before", "after"}
    assert (folder / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert load_config([str(folder / "config.yaml")]).trainer.steps == 2
    tokenizer = AutoTokenizer.from_pretrained(folder / "hf")
    model = AutoModelForCausalLM.from_pretrained(folder / "hf")
    assert tokenizer.decode(tokenizer("1 + 2")["input_ids"]) == "1 + 2"
    assert model.config.vocab_size == 128
