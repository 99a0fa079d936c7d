"""Shards that mappings cut, against a numpy oracle of vLLM's loaders."""

import numpy as np
import pytest

from hybridengine.layouts.families import vllm_stages
from hybridengine.layouts.layout import Layout
from hybridengine.layouts.spec import Spec
from hybridengine.mapping import MAPPINGS, Mapping, Weight, column

HEADS, KV_HEADS = 8, 2


def tiny_config(architecture, **changes):
    return {
        "architectures": [architecture],
        "model_type": MAPPINGS[architecture].model_type,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": 6,
        "intermediate_size": 24,
        "vocab_size": 70,
        "tie_word_embeddings": False,
        **changes,
    }


def random_weights(spec):
    generator = np.random.default_rng(0)
    return {
        name: generator.integers(1, 1 << 20, shape).astype(np.float32)
        for name, shape, _ in spec.tensors
    }


def materialize(layout, weights, rank):
    """The local tensors of a rank, filled through its pieces; zero where no piece lies."""
    local = {name: np.zeros(shape, np.float32) for name, shape, _ in layout.locals(rank)}
    for tensor, name, start, size, offset, strides in layout.pieces(rank):
        box = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
        flat = local[name].reshape(-1)[offset:]
        view = np.lib.stride_tricks.as_strided(flat, size, [4 * stride for stride in strides])
        view[...] = weights[tensor][box]
    return local


def vllm_oracle(weights, tp, rank, kv_heads=KV_HEADS):
    """What rank `rank` of vLLM holds, from the whole tensors by slicing alone."""
    parts, whole = {}, {}
    for name, value in weights.items():
        layer, _, last = name.rpartition("_proj.")
        kind = layer.rpartition(".")[2]
        if kind in ("q", "gate", "up"):
            parts[name] = np.split(value, tp)[rank]
        elif kind in ("k", "v"):
            parts[name] = np.split(value, min(tp, kv_heads))[rank * min(tp, kv_heads) // tp]
        elif kind in ("o", "down") and last == "weight":
            whole[name] = np.split(value, tp, axis=1)[rank]
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            padded = np.pad(value, ((0, -len(value) % 64), (0, 0)))
            whole[name] = np.split(padded, tp)[rank]
        else:
            whole[name] = value
    for fused, kinds in (("qkv_proj", "qkv"), ("gate_up_proj", ("gate", "up"))):
        for name in [name for name in parts if f".{kinds[0]}_proj." in name]:
            names = [name.replace(f".{kinds[0]}_proj.", f".{kind}_proj.") for kind in kinds]
            joined = np.concatenate([parts.pop(each) for each in names])
            whole[name.replace(f".{kinds[0]}_proj.", f".{fused}.")] = joined
    assert not parts
    return whole


def assert_same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("architecture", MAPPINGS)
def test_vllm_shards_equal_the_oracle(architecture, bias, tp):
    config = tiny_config(architecture, attention_bias=bias, mlp_bias=bias)
    spec = Spec.from_config(config)
    weights = random_weights(spec)
    layout = Layout.vllm(tp=tp).bind(spec)
    for rank in range(tp):
        assert_same(materialize(layout, weights, rank), vllm_oracle(weights, tp, rank))


@pytest.mark.parametrize("architecture", MAPPINGS)
def test_tensor_parallel_keeps_names_and_does_not_pad(architecture):
    spec = Spec.from_config(tiny_config(architecture))
    weights = random_weights(spec)
    layout = Layout.tensor_parallel(2, replicas=2).bind(spec)
    for rank in range(4):
        part = rank % 2
        local = materialize(layout, weights, rank)
        assert list(local) == [name for name, _, _ in spec.tensors]
        assert local["lm_head.weight"].shape == (35, 16)
        query = "model.layers.2.self_attn.q_proj.weight"
        np.testing.assert_array_equal(local[query], np.split(weights[query], 2)[part])
        down = "model.layers.2.mlp.down_proj.weight"
        np.testing.assert_array_equal(local[down], np.split(weights[down], 2, axis=1)[part])


def test_fsdp2_chunks_what_tensor_parallelism_leaves():
    spec = Spec.from_config(tiny_config("Qwen3ForCausalLM"))
    weights = random_weights(spec)
    layout = Layout.fsdp2(3, tp=2, replicas=2).bind(spec)
    shards = [materialize(layout, weights, rank) for rank in range(12)]
    for rank, local in enumerate(shards):
        tp, n = rank % 2, rank // 2 % 3
        for name, axis in (("q_proj", 0), ("o_proj", 1), ("k_norm", None)):
            name = f"model.layers.0.self_attn.{name}.weight"
            part = weights[name] if axis is None else np.split(weights[name], 2, axis)[tp]
            rows = -(-len(part) // 3)
            np.testing.assert_array_equal(local[name], part[n * rows : (n + 1) * rows])


def four_heads(**changes):
    sizes = {"hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2}
    return tiny_config("Qwen2ForCausalLM", num_hidden_layers=1, **sizes, **changes)


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_fused_qkv_is_all_q_then_k_then_v(kind):
    spec = Spec.from_config(four_heads())
    weights = random_weights(spec)
    for base, letter in ((1000, "q"), (2000, "k"), (3000, "v")):
        name = f"model.layers.0.self_attn.{letter}_proj.{kind}"
        numbers = np.arange(base, base + len(weights[name]), dtype=np.float32)
        weights[name][...] = numbers if kind == "bias" else numbers[:, None]

    def rows(tp, rank):
        local = materialize(Layout.vllm(tp=tp).bind(spec), weights, rank)
        fused = local[f"model.layers.0.self_attn.qkv_proj.{kind}"]
        return (fused if kind == "bias" else fused[:, -1]).astype(int).tolist()

    query, key, value = (list(range(b, b + n)) for b, n in ((1000, 8), (2000, 4), (3000, 4)))
    assert rows(1, 0) == query + key + value
    assert rows(2, 0) == query[:4] + key[:2] + value[:2]
    assert rows(2, 1) == query[4:] + key[2:] + value[2:]


def plain_mlp(units):
    fused = "mlp.gate_up.weight"
    return Mapping(
        [
            Weight("mlp.gate.weight", cut=column(units), fused=(fused, 0)),
            Weight("mlp.up.weight", cut=column(units), fused=(fused, 1)),
            Weight("**"),
        ]
    )


@pytest.mark.parametrize(
    ("tp", "expected"),
    [
        (2, [[10, 11, 12, 50, 51, 52], [13, 14, 15, 53, 54, 55]]),
        (3, [[10, 11, 50, 51], [12, 13, 52, 53], [14, 15, 54, 55]]),
    ],
)
def test_gate_and_up_are_cut_before_they_are_joined(tp, expected):
    shapes = {"mlp.gate.weight": (6, 4), "mlp.up.weight": (6, 4), "scale": ()}
    spec = Spec.from_tensors([(name, shape, "bfloat16") for name, shape in shapes.items()])
    weights = {
        "mlp.gate.weight": np.repeat(np.arange(10, 16)[:, None], 4, axis=1),
        "mlp.up.weight": np.repeat(np.arange(50, 56)[:, None], 4, axis=1),
        "scale": np.array(3.5),
    }
    layout = Layout.vllm(tp=tp, mapping=plain_mlp(6)).bind(spec)
    for rank in range(tp):
        local = materialize(layout, weights, rank)
        assert local["mlp.gate_up.weight"][:, 3].tolist() == expected[rank]
        assert local["scale"] == 3.5


@pytest.mark.parametrize(
    ("tp", "heads"), [(2, [0, 1]), (4, [0, 0, 1, 1]), (8, [0, 0, 0, 0, 1, 1, 1, 1])]
)
def test_ranks_share_a_kv_head_where_tp_exceeds_them(tp, heads):
    spec = Spec.from_config(tiny_config("LlamaForCausalLM", head_dim=2, attention_bias=True))
    layout = Layout.vllm(tp=tp).bind(spec)
    for kind in ("weight", "bias"):
        name = f"model.layers.0.self_attn.k_proj.{kind}"
        held = [
            start[0] // 2
            for rank in range(tp)
            for tensor, _, start, size, _, _ in layout.pieces(rank)
            if tensor == name and size[0] == 2
        ]
        assert held == heads


def test_an_own_head_is_not_the_embedding():
    spec = Spec.from_config(tiny_config("LlamaForCausalLM", vocab_size=6, hidden_size=2))
    weights = random_weights(spec)
    weights["model.embed_tokens.weight"] = np.arange(12).reshape(6, 2)
    weights["lm_head.weight"] = np.arange(100, 112).reshape(6, 2)
    layout = Layout.vllm(tp=2).bind(spec)
    first, second = (materialize(layout, weights, rank) for rank in range(2))
    assert first["lm_head.weight"][:6].tolist() == weights["lm_head.weight"].tolist()
    assert first["lm_head.weight"].shape == second["lm_head.weight"].shape == (32, 2)
    assert first["model.embed_tokens.weight"][0, 0] == 0
    assert not second["lm_head.weight"].any()


@pytest.mark.parametrize(
    ("layers", "pp", "expected"),
    [(30, 4, [7, 8, 8, 7]), (5, 3, [2, 2, 1]), (1, 2, [1, 0]), (14, 4, [3, 4, 4, 3]), (6, 1, [6])],
)
def test_vllm_stages(layers, pp, expected):
    assert vllm_stages(layers, pp) == expected


@pytest.mark.parametrize("tie", [False, True])
def test_pipeline_stages_hold_their_layers_and_ends(tie):
    config = tiny_config("Qwen2ForCausalLM", num_hidden_layers=5, tie_word_embeddings=tie)
    spec = Spec.from_config(config)
    weights = random_weights(spec)
    layout = Layout.vllm(tp=2, pp=3).bind(spec)
    for rank in range(6):
        stage, layers = rank // 2, {0: (0, 1), 1: (2, 3), 2: (4,)}
        here = [
            name
            for name in weights
            if (name.startswith("model.layers.") and int(name.split(".")[2]) in layers[stage])
            or (name == "model.embed_tokens.weight" and (stage == 0 or (tie and stage == 2)))
            or (name in ("model.norm.weight", "lm_head.weight") and stage == 2)
        ]
        expected = vllm_oracle({name: weights[name] for name in here}, 2, rank % 2)
        assert_same(materialize(layout, weights, rank), expected)


def test_dp_and_replicas_hold_the_same():
    spec = Spec.from_config(tiny_config("LlamaForCausalLM"))
    weights = random_weights(spec)
    layout = Layout.vllm(tp=2, dp=2, replicas=2, ep=4, ranks=[*range(10, 18)]).bind(spec)
    for rank in range(10, 18):
        assert_same(materialize(layout, weights, rank), vllm_oracle(weights, 2, rank % 2))
