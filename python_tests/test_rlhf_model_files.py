"""Directories of models that cannot train: each refused in one line, before anything starts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rlhf_small_run import SMALL

from hybridengine import UsageError
from hybridengine.mapping import MAPPINGS
from hybridengine.rlhf.config.loading import load_config, load_pairs_config
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import character_tokenizer
from hybridengine.rlhf.model_files import check_base_model, check_models, trained_types
from hybridengine.rlhf.trainer import run
from hybridengine.rlhf.trainer.preflight import check_attention
from hybridengine.rlhf.trainer.reward_run import train_reward
from hybridengine.rlhf.trainer.vocabulary import checked_tokenizer

pytestmark = pytest.mark.python

FACTS = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 130,
    "pad_token_id": 0,
    "eos_token_id": 2,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete qwen2 with a tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("checkpoint")
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **FACTS))
    model.save_pretrained(folder)
    character_tokenizer(130).save_pretrained(folder)
    return folder


@pytest.fixture
def directory(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in checkpoint.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def config_of(directory: Path, *overrides: str) -> Config:
    return load_config([*SMALL, "model.config={}", f"model.path={directory}", *overrides])


def refused(check: Callable[[Config], Any], config: Config) -> str:
    with pytest.raises(UsageError) as caught:
        check(config)
    words = str(caught.value)
    assert "\n" not in words and words.endswith(".")
    return words


def change(directory: Path, **facts: Any) -> None:
    """Of its config.json."""
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def test_a_complete_directory_passes(checkpoint: Path) -> None:
    config = config_of(checkpoint)
    check_models(config)
    check_attention(config)
    assert len(checked_tokenizer(config)) == 130


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    """Of the presets only those with weights are offered."""
    assert refused(check_models, config_of(tmp_path / "absent")) == (
        f"'{tmp_path}/absent' is no model and no directory. Use smollm2-135m, the directory of a "
        "HF checkpoint, or an id of the Hugging Face hub (org/name)."
    )


def test_a_directory_without_config(directory: Path) -> None:
    (directory / "config.json").unlink()
    words = refused(check_models, config_of(directory))
    assert words.startswith(f"model.path: {directory} has no config.json. Give")


def test_a_directory_without_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    words = refused(check_models, config_of(directory))
    assert f"{directory} has no weights (no model.safetensors or " in words
    (directory / "pytorch_model.bin").touch()  # what is in it, ranks see
    check_models(config_of(directory))


def test_weights_that_are_cut_short(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "is cut short" in refused(check_models, config_of(directory))


def test_weights_of_other_shapes(directory: Path) -> None:
    change(directory, intermediate_size=48)
    words = refused(check_models, config_of(directory))
    assert "weights have other shapes than config.json says" in words
    assert "'model.layers.0.mlp.down_proj.weight' is [24, 40], by its config [24, 48]" in words
    assert words.endswith("and 3 more. Give weights and config of one model.")


@pytest.mark.parametrize("role", ["critic", "reference", "reward_model"])
def test_only_models_that_the_run_uses_are_looked_at(
    checkpoint: Path, tmp_path: Path, role: str
) -> None:
    (tmp_path / "bare").mkdir()
    bare = f"{role}.path={tmp_path}/bare"
    words = refused(check_models, config_of(checkpoint, bare))
    assert words.startswith(f"{role}.path: {tmp_path}/bare has no config.json")
    if role != "reward_model":
        unused = ["algorithm.advantage=grpo", "algorithm.kl_coef=0"]
        config = config_of(checkpoint, bare, *unused)
        check_models(config)
        check_attention(config)


def test_a_directory_without_tokenizer(directory: Path) -> None:
    """Qwen's loads from nothing, and makes no token of any text."""
    (directory / "tokenizer.json").unlink()
    expected = (
        f"{directory} has no tokenizer (no tokenizer.json, tokenizer.model or vocab.json). Set "
        "model.tokenizer to a directory with one."
    )
    assert refused(checked_tokenizer, config_of(directory)) == expected
    (directory / "tokenizer_config.json").unlink()
    assert refused(checked_tokenizer, config_of(directory)) == expected
    change(directory, model_type="llama", architectures=["LlamaForCausalLM"])
    assert refused(checked_tokenizer, config_of(directory)) == expected


def test_ids_that_the_model_has_no_row_for(checkpoint: Path, tmp_path: Path) -> None:
    """Also where the tokens are few, but their ids are high."""
    character_tokenizer(131).save_pretrained(tmp_path)
    config = config_of(checkpoint, f"model.tokenizer={tmp_path}")
    words = refused(checked_tokenizer, config)
    assert words == (
        "the tokenizer has tokens up to id 130, the model rows for 130. Set model.tokenizer to the "
        "one that belongs to the model."
    )
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    for name in [name for name in vocabulary if name.startswith("<unused")][:-1]:
        del vocabulary[name]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert refused(checked_tokenizer, config) == words


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}, "of model_type 'phi3'"),
        ({"model_type": "gpt2", "architectures": None}, "of model_type 'gpt2'"),
        ({"model_type": None, "architectures": []}, "of model_type None"),
        (
            {"architectures": ["Qwen2ForSequenceClassification"]},
            "a Qwen2ForSequenceClassification, which does not generate",
        ),
    ],
)
def test_families_that_do_not_train(directory: Path, facts: dict[str, Any], what: str) -> None:
    change(directory, **facts)
    began = time.process_time()
    words = refused(check_models, config_of(directory))
    assert time.process_time() - began < 1
    assert words.startswith(f"model.path={directory} is {what}")
    assert "Use a causal language model of model_type gemma, gemma2" in words
    if facts.get("model_type", "qwen2") != "qwen2":
        given = config_of(directory, "model.path=null", f"model.config={json.dumps(facts)}")
        assert refused(check_models, given).startswith("model.config is of model_type ")


def test_families_that_generate_nothing_train_offline_and_as_reward_models(
    directory: Path,
) -> None:
    change(directory, model_type="phi3", architectures=["Phi3ForCausalLM"])
    offline = ["data.mode=offline", "data.gym.name=null", "data.train_files=[x.jsonl]"]
    check_models(config_of(directory, *offline, "warmup.steps=0"))
    check_base_model(load_pairs_config([f"model.path={directory}", "data.train_files=[x.jsonl]"]))


def test_nothing_moves_and_nothing_starts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: Any) -> None:
        raise AssertionError("too far")

    monkeypatch.setattr(run.RunFolder, "claim", touched)
    monkeypatch.setattr(run.Cluster, "start", touched)
    change(directory, model_type="phi3", architectures=["Phi3ForCausalLM"])
    assert "'phi3'" in refused(run.train, config_of(directory))
    (directory / "config.json").unlink()
    pairs = load_pairs_config([f"model.path={directory}", "data.train_files=[x.jsonl]"])
    assert "has no config.json" in refused(train_reward, pairs)


def test_the_command_refuses_it_without_torch(directory: Path) -> None:
    change(directory, model_type="phi3", architectures=["Phi3ForCausalLM"])
    arguments = [*SMALL, "model.config={}", f"model.path={directory}"]
    code = (
        "import sys\nfrom hybridengine import UsageError\n"
        "from hybridengine.rlhf import command\n"
        f"try:\n    command.train({arguments!r})\n"
        "except UsageError as error:\n    print(error)\n"
        "print([name for name in ('torch', 'ray', 'transformers') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    words, heavy = ran.stdout.splitlines()
    assert "of model_type 'phi3'" in words and heavy == "[]"


def test_attention_that_rows_without_padding_lack(tmp_path: Path) -> None:
    facts = f"model.config={json.dumps({**FACTS, 'model_type': 'gemma2', 'head_dim': 12})}"
    words = refused(check_attention, load_config([*SMALL, facts]))
    assert words == (
        "actor: models of type 'gemma2' cap the logits of their attention (at 50), which rows "
        "without padding do not compute. Set actor.sequence_packing=false."
    )
    actor = [*SMALL, facts, "actor.sequence_packing=false"]
    assert "Set critic.sequence_packing=false." in refused(check_attention, load_config(actor))
    check_attention(load_config([*actor, "critic.sequence_packing=false"]))
    check_attention(load_config([*actor, "algorithm.advantage=grpo"]))


def test_the_families_that_train_are_those_that_are_mapped_and_documented() -> None:
    """test_documentation.py compares the table of those that are mapped."""
    assert trained_types() == sorted(mapping.model_type for mapping in MAPPINGS.values())
    page = (Path(__file__).parents[1] / "docs" / "trainer.md").read_text()
    section = page.partition("## Which models train")[2].partition("\n## ")[0]
    assert "(layouts.md#models-that-are-mapped)" in section
    assert set(re.findall(r"^- `(\w+)` needs", section, re.MULTILINE)) <= set(trained_types())
