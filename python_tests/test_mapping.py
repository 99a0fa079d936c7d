"""Mappings: their rows, what they refuse, and their shapes and cuts against transformers."""

import pytest

from hybridengine._core import UsageError
from hybridengine.layouts.layout import Layout, LayoutRule
from hybridengine.layouts.spec import Spec
from hybridengine.mapping import MAPPINGS, Mapping, Weight, column, get_mapping, row


def tiny_config(architecture, **changes):
    return {
        "architectures": [architecture],
        "model_type": MAPPINGS[architecture].model_type,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "intermediate_size": 24,
        "vocab_size": 70,
        "tie_word_embeddings": False,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "text", "expected"),
    [
        (
            {"num_attention_heads": 9, "num_key_value_heads": 9, "intermediate_size": 18},
            "vllm(tp=2)",
            "9 attention heads do not divide by tp 2; possible: 1, 3, 9. Nor do 9 kv heads. "
            "The whole model allows 1",
        ),
        (
            {"num_attention_heads": 9, "num_key_value_heads": 9, "vocab_size": 576 * 3},
            "tensor_parallel(2)",
            "9 attention heads do not divide by tp 2; possible: 1, 3, 9. Nor do 9 kv heads. "
            "The whole model allows 1, 3",
        ),
        (
            {},
            "vllm(tp=3)",
            "8 attention heads do not divide by tp 3; possible: 1, 2, 4, 8. Nor do 2 kv heads, "
            "nor does vocabulary 70 padded to 128",
        ),
        (
            {"num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 192},
            "vllm(tp=3)",
            "4 kv heads do not divide by tp 3; possible: 1, 2, 4, 12",
        ),
        (
            {"intermediate_size": 12},
            "vllm(tp=8)",
            "intermediate size 12 does not divide by tp 8; possible: 1, 2, 4",
        ),
        (
            {"vocab_size": 7},
            "fsdp2(2,tp=2)",
            "vocabulary 7 does not divide by tp 2; possible: 1",
        ),
    ],
)
def test_a_refused_split_names_the_possible_ones(changes, text, expected):
    spec = Spec.from_config(tiny_config("LlamaForCausalLM", **changes))
    with pytest.raises(UsageError) as error:
        LayoutRule.parse(text).bind(spec)
    assert str(error.value) == expected


def test_a_spec_without_config_says_how_to_get_one():
    spec = Spec.from_tensors([("a.weight", (4, 4), "float32")])
    for rule in (Layout.vllm(tp=2), Layout.tensor_parallel(2), Layout.fsdp2(2, tp=2)):
        with pytest.raises(UsageError, match=r"no config.*Spec\.from_config.*mapping="):
            rule.bind(spec)
    with pytest.raises(UsageError, match="stages"):
        Layout.vllm(pp=2, mapping=Mapping([Weight("**")])).bind(spec)
    with pytest.raises(UsageError, match="which only a config tells"):
        Layout.vllm(tp=2, mapping=Mapping([Weight("**", cut=column("heads"))])).bind(spec)
    whole = Layout.vllm(dp=2).bind(spec)
    assert whole.locals(1) == [("a.weight", (4, 4), "float32")]


def test_a_tensor_that_the_mapping_forgot_is_an_error():
    spec = Spec.from_tensors([("other.weight", (4, 4), "float32")])
    with pytest.raises(UsageError, match=r"other\.weight"):
        Layout.vllm(tp=2, mapping=Mapping([Weight("a.weight")])).bind(spec)


@pytest.mark.parametrize("lost", ["gate", "up"])
def test_a_fused_tensor_that_lost_a_part(lost):
    """It would be another tensor, of another size in each layer."""
    parts = ("gate", "up")
    mapping = Mapping(
        [
            Weight(f"l.*.{part}.weight", fused=("l.*.gate_up.weight", slot))
            for slot, part in enumerate(parts)
        ]
    )
    rows = [(f"l.{i}.{part}.weight", (4, 4), "float32") for i in range(2) for part in parts]
    whole = Layout.vllm(mapping=mapping).bind(Spec.from_tensors(rows))
    assert whole.locals(0) == [(f"l.{i}.gate_up.weight", (8, 4), "float32") for i in range(2)]
    spec = Spec.from_tensors([row for row in rows if row[0] != f"l.1.{lost}.weight"])
    other = "up" if lost == "gate" else "gate"
    with pytest.raises(UsageError) as raised:
        Layout.vllm(mapping=mapping).bind(spec)
    assert "'l.1.gate_up.weight' lacks a part" in str(raised.value)
    assert f"no 'l.1.{lost}.weight' beside 'l.1.{other}.weight'" in str(raised.value)
    spec = Spec.from_tensors([row for row in rows if not row[0].startswith("l.1.")])
    Layout.vllm(mapping=mapping).bind(spec).check()  # all of it may be left out


def test_shared_units_and_row_cuts_of_an_own_mapping():
    mapping = Mapping(
        [Weight("k.*.weight", cut=column(2, shared=True)), Weight("o.*.weight", cut=row(4))]
    )
    spec = Spec.from_tensors([("k.7.weight", (6, 5), "float32"), ("o.0.weight", (3, 8), "float32")])
    layout = Layout.tensor_parallel(4, mapping=mapping).bind(spec)
    boxes = [[piece[2:4] for piece in layout.pieces(rank)] for rank in range(4)]
    assert [key[0] for key, _ in boxes] == [(0, 0), (0, 0), (3, 0), (3, 0)]
    assert [output for _, output in boxes] == [((0, 2 * n), (3, 2)) for n in range(4)]
    with pytest.raises(UsageError, match=r"4 units of 'o\.\*\.weight' do not divide by tp 8"):
        Layout.tensor_parallel(8, mapping=mapping).bind(spec)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([Weight("a"), Weight("a")], "'a' twice"),
        ([Weight("a", fused=("f", 0)), Weight("b", fused=("f", 0))], "twice"),
        ([Weight("a.*.b", fused=("f", 0))], "different numbers"),
        ([Weight("a", shape=("hidden*depth",))], "'depth'.*Use hidden, layers"),
        ([Weight("a", cut=column("head"))], "'head'"),
        ([Weight("a", cut=row(0))], "0 units"),
        ([Weight("a", when="not tied")], "'tied'.*Use tie"),
        ([Weight("a", stage="middle")], "'middle'.*Use layer, first, last"),
    ],
)
def test_a_row_that_makes_no_sense_is_an_error(rows, expected):
    with pytest.raises(UsageError, match=expected):
        Mapping(rows)


def test_an_unknown_architecture_lists_the_known():
    with pytest.raises(UsageError, match="LlamaForCausalLM, MistralForCausalLM"):
        get_mapping("FooForCausalLM")


def config_class(architecture):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    return transformers.CONFIG_MAPPING[get_mapping(architecture).model_type]


def transformers_config(architecture, **changes):
    raw = tiny_config(architecture, **changes)
    del raw["architectures"], raw["model_type"]
    return config_class(architecture)(**raw)


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("architecture", MAPPINGS)
def test_spec_equals_the_transformers_model(architecture, bias, tie):
    config = transformers_config(
        architecture, attention_bias=bias, mlp_bias=bias, tie_word_embeddings=tie
    )
    import torch
    import transformers

    with torch.device("meta"):
        model = getattr(transformers, architecture)(config)
    expected = {name: tuple(value.shape) for name, value in model.named_parameters()}
    spec = Spec.from_config(config)
    assert {name: shape for name, shape, _ in spec.tensors} == expected
    assert spec.aliases == ([("lm_head.weight", "model.embed_tokens.weight")] if tie else [])


@pytest.mark.parametrize("architecture", MAPPINGS)
def test_defaults_equal_those_of_transformers(architecture):
    default = config_class(architecture)()
    raw = tiny_config(architecture)
    del raw["tie_word_embeddings"]
    assert Spec.from_config(raw).config.tie == default.tie_word_embeddings
    if get_mapping(architecture).head_dim is not None:
        assert get_mapping(architecture).head_dim == default.head_dim


# The dim that each style of transformers' plans cuts; None: it keeps the weight whole.
CUT_BY_STYLE = {
    "colwise": 0,
    "colwise_gather_output": 0,
    "rowwise": 1,
    "rowwise_split_input": 1,
    "replicated_with_grad_allreduce": None,
}


@pytest.mark.parametrize("architecture", MAPPINGS)
def test_cuts_agree_with_the_plan_of_transformers(architecture):
    """Its runtime plan names every weight of a layer that is cut, and cuts the same dim of it."""
    plan = {
        f"model.{name}.weight": CUT_BY_STYLE[style]
        for name, style in config_class(architecture).base_model_tp_plan.items()
    }
    layer = {
        weight.name: None if weight.cut is None else weight.cut.dim
        for weight in get_mapping(architecture).weights
        if weight.layered and weight.name.endswith(".weight")
    }
    assert {name: layer[name] for name in plan} == plan
    assert {name for name, dim in layer.items() if dim is not None} <= set(plan)
