"""Models, tokenizers and data by their ids on the hub, from a cache that is made here, offline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rlhf_local_roles
import torch
from rlhf_small_run import SMALL

from hybridengine import UsageError
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.config.schema import Data
from hybridengine.rlhf.data import character_tokenizer, read_files
from hybridengine.rlhf.hub import HubId, dataset_snapshot, model_snapshot
from hybridengine.rlhf.model_files import check_models, model_directory
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.source import open_source
from hybridengine.rlhf.trainer.step import Steps
from hybridengine.rlhf.trainer.vocabulary import check_vocabularies, checked_tokenizer

pytestmark = pytest.mark.python

_COMMIT, _OLDER = "a" * 40, "b" * 40


def _cached(cache: Path, kind: str, name: str, commit: str = _COMMIT, ref: str = "main") -> Path:
    """The empty snapshot of a repository, as huggingface_hub lays it out."""
    folder = cache / f"{kind}s--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / ref).write_text(commit)
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    return snapshot


def _rows(path: Path, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"{i}+1=", "ground_truth": str(i + 1)} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The hub is out of reach, in this process and in those that it starts."""
    from huggingface_hub import constants

    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield folder
    model_snapshot.cache_clear()
    dataset_snapshot.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubId("org/name", None, None)),
        ("Qwen/Qwen2.5-0.5B@v1.0", HubId("Qwen/Qwen2.5-0.5B", "v1.0", None)),
        ("o/d@refs/pr/1:main/*.parquet", HubId("o/d", "refs/pr/1", "main/*.parquet")),
        ("o/d:x", HubId("o/d", None, "x")),
        ("name", None),
        ("/org/name", None),
        ("./org/name", None),
        ("../name", None),
        ("a/b/c", None),
        ("org/", None),
        ("org/na me", None),
        ("", None),
    ],
)
def test_what_may_be_an_id(text: str, expected: HubId | None) -> None:
    assert HubId.parse(text) == expected


def test_a_model_by_its_id_and_revision(cache: Path) -> None:
    newest = _cached(cache, "model", "org/tiny")
    older = _cached(cache, "model", "org/tiny", _OLDER, ref="v1")
    assert model_directory("org/tiny") == newest
    assert model_directory("org/tiny@v1") == model_directory(f"org/tiny@{_OLDER}") == older


def test_a_directory_of_that_name_goes_first(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cached(cache, "model", "org/tiny")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    assert model_directory("org/tiny") == Path("org/tiny")


def test_files_of_a_dataset(cache: Path) -> None:
    snapshot = _cached(cache, "dataset", "org/sums")
    for name, count in (("main/train-00000-of-00001", 3), ("main/test-00000-of-00001", 2)):
        _rows(snapshot / f"{name}.jsonl", count)
    assert len(read_files(["org/sums:main/train-*.jsonl"], Data())) == 3
    assert len(read_files(["org/sums:main/test-00000-of-00001.jsonl"], Data())) == 2
    with pytest.raises(UsageError, match="holds several splits"):
        read_files(["org/sums"], Data())
    with pytest.raises(UsageError, match=r"^no file matches"):
        read_files(["org/sums:main/valid-*.jsonl"], Data())
    _rows(_cached(cache, "dataset", "org/one") / "train.jsonl", 4)
    assert len(read_files(["org/one"], Data())) == 4


def test_what_the_cache_lacks_is_named_with_the_cache(cache: Path) -> None:
    with pytest.raises(UsageError) as caught:
        model_directory("org/missing@v2")
    assert str(caught.value) == (
        "'org/missing@v2' is no file or directory here, and the model of that name on the Hugging "
        f"Face hub cannot be had: the hub is not reached. The cache {cache} has no copy of it. "
        "Mend the name, or fetch it where there is a network: hf download org/missing."
    )
    with pytest.raises(UsageError) as caught:
        read_files(["org/missing:train-*.jsonl"], Data())
    words = str(caught.value)
    assert str(cache) in words and words.endswith("hf download org/missing --repo-type dataset.")


def test_a_path_to_nothing_is_no_id(cache: Path) -> None:
    for path in ("data/train.jsonl", "data/train.parquet", "a/b/c", "/no/such"):
        with pytest.raises(UsageError, match=r"^there is no file or directory"):
            read_files([path], Data())
    with pytest.raises(UsageError, match=r"or an id of the Hugging Face hub \(org/name\)\.$"):
        model_directory("a/b/c")


def test_all_of_a_run_by_ids(cache: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 128}
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **sizes, **heads))
    with torch.no_grad():
        model.model.norm.weight.normal_()
    snapshot = _cached(cache, "model", "org/tiny")
    model.save_pretrained(snapshot)
    character_tokenizer().save_pretrained(_cached(cache, "model", "org/characters"))
    _rows(_cached(cache, "dataset", "org/sums") / "train.jsonl", 12)
    ids = ["model.config={}", "model.path=org/tiny", "model.tokenizer=org/characters"]
    data = ["data.gym.name=null", "data.train_files=[org/sums]", "warmup.steps=0"]
    config = load_config([*SMALL, *ids, *data, "critic.path=org/tiny", "trainer.ranks=1"])
    check_models(config)
    tokenizer = checked_tokenizer(config)
    check_vocabularies(config, tokenizer)
    source = open_source(config, tokenizer)
    with rlhf_local_roles.one_rank(tmp_path) as context:
        roles = rlhf_local_roles.local_roles(context, config)
        steps = Steps(config, roles)
        steps.sync(0, Clock())
        scored, _ = source.rollouts(steps, Clock())
        roles.reward.close()
        found = roles.actor.role.backend.module.state_dict()["model.norm.weight"].full_tensor()
    assert len(scored.rows) == 20
    assert torch.equal(found, model.state_dict()["model.norm.weight"].to(found.dtype))
