"""The type of hf/: that of the checkpoint that training began with, unless the config says else."""

from __future__ import annotations

import functools
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import rlhf_local_roles
import torch
from rlhf_small_run import SMALL
from rlhf_training_scenarios import make

from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.data import character_tokenizer
from hybridengine.rlhf.roles.policy import ActorRole
from hybridengine.rlhf.training import export, state
from hybridengine.rlhf.training.models import export_dtype
from hybridengine.rlhf.training.optimizer import local

pytestmark = pytest.mark.python


def small(*overrides: str) -> Any:
    more = ["trainer.ranks=1", "actor.dtype=float32", "warmup.steps=0"]
    return load_config([*SMALL, *more, "model.config={}", *overrides])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of bfloat16."""
    folder = tmp_path_factory.mktemp("checkpoint")
    make(dtype=torch.bfloat16, vocab_size=128).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    return folder


@pytest.mark.parametrize(
    ("overrides", "dtype"),
    [([], torch.bfloat16), (["trainer.hf_dtype=float32"], torch.float32)],
    ids=["checkpoint", "float32"],
)
def test_what_trained_in_float32_is_exported_as_it_came(
    checkpoint: Path, tmp_path: Path, overrides: list[str], dtype: torch.dtype
) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    config = small(f"model.path={checkpoint}", *overrides)
    with rlhf_local_roles.one_rank(tmp_path) as context:
        actor = ActorRole(context, config)
        torch.manual_seed(0)
        for weight in actor.backend.module.parameters():
            assert weight.dtype == torch.float32
            local(weight).data.mul_(1 + 0.01 * torch.rand(local(weight).shape))
        trained = whole_weights(actor)
        assert actor.export(str(tmp_path / "hf")) == ""
        assert actor.save(str(tmp_path / "state")) == ""
        for weight in actor.backend.module.parameters():
            local(weight).data.zero_()
        actor.restore(str(tmp_path / "state"))
        restored = whole_weights(actor)
    assert all(weight.equal(restored[name]) for name, weight in trained.items())
    exported = load_file(tmp_path / "hf" / "model.safetensors")
    assert set(exported) == set(trained)  # tied weights once
    for name, tensor in exported.items():
        assert tensor.dtype == dtype and tensor.equal(trained[name].to(dtype)), name
    facts = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert facts["dtype"] == str(dtype).removeprefix("torch.")
    assert facts["architectures"] == ["Qwen2ForCausalLM"]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert loaded.dtype == dtype


def whole_weights(actor: Any) -> dict[str, torch.Tensor]:
    return {
        n: weight.full_tensor().clone() for n, weight in actor.backend.module.named_parameters()
    }


@pytest.mark.parametrize(
    ("facts", "overrides", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, [], torch.bfloat16),  # as older transformers named it
        ({"dtype": "float16"}, [], torch.float16),
        ({}, [], torch.float32),
        ({}, ["actor.dtype=float64"], torch.float64),
        ({"dtype": "float16"}, ["trainer.hf_dtype=bfloat16"], torch.bfloat16),
    ],
)
def test_what_decides(facts: dict[str, str], overrides: list[str], dtype: torch.dtype) -> None:
    model = json.dumps({"model_type": "qwen2", **facts})
    config = small(f"model.config={model}", *overrides)
    assert export_dtype(config, config.actor) == dtype


def test_files_are_written_a_weight_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In as many files as their size asks for; at no time is there more than one whole weight, and
    each is progress."""
    from transformers import AutoModelForCausalLM

    module = make(dtype=torch.float32, tie_word_embeddings=False)
    alive: list[weakref.ref[torch.Tensor]] = []
    bytes_of = export._bytes_of

    def counting(tensor: torch.Tensor) -> Any:
        assert sum(each() is not None for each in alive) <= 1  # the one that was written last
        alive.append(weakref.ref(tensor))
        return bytes_of(tensor)

    monkeypatch.setattr(export, "_bytes_of", counting)
    write = functools.partial(export.write_checkpoint, file_bytes=2000)
    monkeypatch.setattr(export, "write_checkpoint", write)
    calls: list[None] = []
    export.export_hf(
        module, None, tmp_path / "hf", torch.bfloat16, progress=lambda: calls.append(None)
    )
    names = dict(module.named_parameters())
    assert len(calls) == len(alive) == len(names)
    assert len(list((tmp_path / "hf").glob("model-*.safetensors"))) > 5
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    for name, each in loaded.named_parameters():
        assert each.equal(names[name].bfloat16()), name


def test_experts_are_kept_apart_again(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    module = make(
        model_type="mixtral", num_local_experts=2, num_experts_per_tok=1, dtype=torch.float32
    )
    module.save_pretrained(tmp_path / "theirs")
    export.export_hf(module, None, tmp_path / "ours")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys() and any("experts.1." in name for name in ours)
    assert all(each.equal(theirs[name]) for name, each in ours.items())


def test_saving_and_restoring_is_progress(tmp_path: Path) -> None:
    """A state of minutes is no rank that hangs."""
    module, calls = make(), []
    state.save_state(tmp_path / "state", module, None, lambda: calls.append("save"))
    state.load_state(tmp_path / "state", module, None, lambda: calls.append("load"))
    tensors = len(dict(module.named_parameters()))
    assert calls.count("save") >= tensors and calls.count("load") >= tensors
