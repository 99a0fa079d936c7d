"""Specs from configs, checkpoints and by hand."""

import json
import struct

import numpy as np
import pytest

from hybridengine._core import UsageError
from hybridengine.layouts.spec import Spec
from hybridengine.mapping import ModelConfig

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 10,
    "torch_dtype": "bfloat16",
}


def shapes(spec):
    return {name: shape for name, shape, _ in spec.tensors}


def write_checkpoint(directory, spec, files=1, raw=LLAMA):
    """Zeros under the spec's names, in one file or several with an index."""
    from safetensors.numpy import save_file

    (directory / "config.json").write_text(json.dumps(raw))
    tensors = {name: np.zeros(shape, np.float16) for name, shape, _ in spec.tensors}
    if files == 1:
        save_file(tensors, directory / "model.safetensors")
        return
    names = list(tensors)
    weight_map = {}
    for number in range(files):
        part = names[number::files]
        save_file({name: tensors[name] for name in part}, directory / f"part-{number}.safetensors")
        weight_map |= dict.fromkeys(part, f"part-{number}.safetensors")
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (directory / "model.safetensors.index.json").write_text(index)


def test_a_config_gives_names_shapes_and_dtype():
    spec = Spec.from_config(LLAMA)
    assert len(spec.tensors) == 2 * 9 + 3
    assert spec.tensors[0] == ("model.embed_tokens.weight", (10, 8), "bfloat16")
    assert spec.tensors[-2:] == [
        ("model.norm.weight", (8,), "bfloat16"),
        ("lm_head.weight", (10, 8), "bfloat16"),
    ]
    assert shapes(spec)["model.layers.1.self_attn.k_proj.weight"] == (4, 8)
    assert shapes(spec)["model.layers.1.mlp.down_proj.weight"] == (8, 12)
    assert spec.find("lm_head.weight") == 20 and spec.find("lm_head.bias") == -1
    assert spec.aliases == []
    assert spec.config == ModelConfig("LlamaForCausalLM", 8, 2, 4, 2, 2, 12, 10, dtype="bfloat16")


def test_a_tied_head_is_an_alias():
    spec = Spec.from_config({**LLAMA, "tie_word_embeddings": True})
    assert spec.aliases == [("lm_head.weight", "model.embed_tokens.weight")]
    assert spec.find("lm_head.weight") == -1
    assert spec.config.tie


def test_head_dim_need_not_follow_from_hidden():
    raw = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "head_dim": 5}
    spec = Spec.from_config(raw)
    assert shapes(spec)["model.layers.0.self_attn.q_proj.weight"] == (20, 8)
    assert shapes(spec)["model.layers.0.self_attn.o_proj.weight"] == (8, 20)
    assert shapes(spec)["model.layers.0.self_attn.k_norm.weight"] == (5,)
    del raw["head_dim"]
    assert Spec.from_config(raw).config.head_dim == 128
    gemma = Spec.from_config({**raw, "architectures": ["Gemma2ForCausalLM"]})
    assert gemma.config.head_dim == 256 and gemma.config.tie
    assert shapes(gemma)["model.layers.1.post_feedforward_layernorm.weight"] == (8,)


def test_dtype_given_wins_and_float32_is_the_last_resort():
    assert Spec.from_config(LLAMA, dtype="float16").tensors[0][2] == "float16"
    silent = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    assert Spec.from_config(silent).tensors[0][2] == "float32"
    assert Spec.from_config({**silent, "dtype": "float64"}).tensors[0][2] == "float64"


def test_a_path_or_a_model_type_will_do(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert Spec.from_config(path) == Spec.from_config(str(path)) == Spec.from_config(LLAMA)
    bare = {key: value for key, value in LLAMA.items() if key != "architectures"}
    assert Spec.from_config(bare) == Spec.from_config(LLAMA)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"architectures": ["FooForCausalLM"]}, "no mapping for .*FooForCausalLM.*Known are Llama"),
        ({"hidden_size": None}, "'hidden_size' is None"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0"),
        ({"vocab_size": True}, "'vocab_size' is True"),
        ({"num_attention_heads": "4"}, "'num_attention_heads' is '4'"),
        ({"num_key_value_heads": 3}, "kv heads do not divide the attention heads"),
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, "8 over 3. Set head_dim"),
        ({"torch_dtype": "float31"}, "float31"),
    ],
)
def test_a_config_that_is_wrong_is_an_error(changes, expected):
    with pytest.raises(UsageError, match=expected):
        Spec.from_config({**LLAMA, **changes})


def test_what_is_no_config_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="'hidden_size' is missing"):
        Spec.from_config({"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(UsageError, match="int is no config"):
        Spec.from_config(3)
    with pytest.raises(UsageError, match=r"cannot read .*nowhere"):
        Spec.from_config(tmp_path / "nowhere.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UsageError, match="is no JSON"):
        Spec.from_config(tmp_path / "bad.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(UsageError, match="holds a list"):
        Spec.from_config(tmp_path / "list.json")


def test_tensors_by_hand_or_from_a_state_dict():
    torch = pytest.importorskip("torch")
    by_hand = Spec.from_tensors([("a", [2, 3], "bfloat16"), ("b", [], torch.float32)], [("c", "a")])
    state = {"a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": torch.zeros(())}
    assert by_hand == Spec.from_tensors(state, aliases=[("c", "a")])
    assert by_hand.num_bytes == 2 * 3 * 2 + 4
    assert by_hand != Spec.from_tensors(state)
    assert by_hand.with_dtype(torch.float64).num_bytes == 7 * 8
    with pytest.raises(UsageError, match="a"):
        Spec.from_tensors([("a", (1,), "float32"), ("a", (1,), "float32")])
    with pytest.raises(UsageError):
        Spec.from_tensors([("a", (1,), "float32")], [("b", "c")])


@pytest.mark.parametrize("raw", [LLAMA, {**LLAMA, "tie_word_embeddings": True}])
def test_saved_specs_keep_their_config(raw):
    spec = Spec.from_config(raw)
    again = Spec.load(spec.save())
    assert again == spec and again.config == spec.config and again.aliases == spec.aliases
    plain = Spec.from_tensors([("a", (2, 3), "int8")])
    assert Spec.load(plain.save()) == plain and Spec.load(plain.save()).config is None
    assert spec != Spec(spec.core)


def test_bytes_that_are_no_spec_are_an_error():
    blob = Spec.from_config(LLAMA).save()
    for broken in (b"", b"HESPEC1\n", blob[:12], blob[:40], blob[:-1], b"x" + blob, blob[9:]):
        with pytest.raises(UsageError):
            Spec.load(broken)


@pytest.mark.parametrize("files", [1, 3])
def test_a_checkpoint_is_read_by_its_headers(tmp_path, files):
    write_checkpoint(tmp_path, Spec.from_config(LLAMA), files)
    spec = Spec.from_hf(tmp_path)
    assert spec.tensors == Spec.from_config(LLAMA, dtype="float16").tensors
    assert spec.config.architecture == "LlamaForCausalLM"


def test_a_checkpoint_that_does_not_fit_lists_what_differs(tmp_path):
    rows = [row for row in Spec.from_config(LLAMA).tensors if row[0] != "model.norm.weight"]
    rows[1] = (rows[1][0], (9, 8), rows[1][2])
    write_checkpoint(tmp_path, Spec.from_tensors([*rows, ("extra", (1,), "float16")]))
    with pytest.raises(UsageError) as error:
        Spec.from_hf(tmp_path)
    text = str(error.value)
    assert "'model.norm.weight' is missing" in text
    assert "'model.layers.0.self_attn.q_proj.weight' is [9, 8], expected [8, 8]" in text
    assert "'extra' is not expected" in text


def test_a_tied_head_that_is_stored_too_stays_an_alias(tmp_path):
    tied = {**LLAMA, "tie_word_embeddings": True}
    write_checkpoint(tmp_path, Spec.from_config(LLAMA), raw=tied)
    spec = Spec.from_hf(tmp_path)
    assert spec.find("lm_head.weight") == -1 and len(spec.aliases) == 1


def test_an_unknown_architecture_is_taken_as_stored(tmp_path):
    rows = [("b", (2, 3), "float16"), ("a.0", (), "float16")]
    write_checkpoint(tmp_path, Spec.from_tensors(rows), raw={"architectures": ["Foo"]})
    spec = Spec.from_hf(tmp_path)
    assert sorted(spec.tensors) == sorted(rows) and spec.config is None


def test_broken_files_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"neither model\.safetensors nor"):
        Spec.from_hf(tmp_path)
    write_checkpoint(tmp_path, Spec.from_config(LLAMA))
    path = tmp_path / "model.safetensors"
    good = path.read_bytes()
    for broken in (
        b"",
        good[:7],
        good[:100],
        good[:-1],
        struct.pack("<Q", 1 << 60) + good[8:],
        struct.pack("<Q", 4) + b"{{{{",
    ):
        path.write_bytes(broken)
        with pytest.raises(UsageError, match=r"model\.safetensors"):
            Spec.from_hf(tmp_path)
