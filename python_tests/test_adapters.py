"""Adapters: a base weight never arrives without what peft put on it, unnoticed."""

from __future__ import annotations

import pytest
import torch
from ranks import run_threads

from hybridengine import Communicator, Layout, LayoutRule, Resharder, Spec, UsageError, reshard
from hybridengine.layouts.adapters import check_adapters, originals

pytestmark = pytest.mark.threads

LORA = "model.layers.0.self_attn.q_proj"
BASE = "q.base_layer.weight"


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ([BASE, "q.lora_A.default.weight"], "q.lora_A.default.weight"),
        (["q.weight", "q.lora_B.weight"], "q.lora_B.weight"),  # by hand, or another name below
        ([BASE, "q.some_new_kind.default"], "q.some_new_kind.default"),
        (
            ["x.q.base_layer.weight", "x.q.lora_magnitude_vector.weight"],
            "x.q.lora_magnitude_vector.weight",
        ),
        (["module.q.base_layer.bias", "module.q.ia3_l.default"], "module.q.ia3_l.default"),
    ],
)
def test_an_adapter_that_stays_behind_is_named(names, left):
    with pytest.raises(UsageError, match=f"no place in hf, .*'{left}'.*merge_adapter"):
        check_adapters(names, names[:1], [left], "hf")
    check_adapters(names, [], [left], "hf")  # its base stays too
    check_adapters(names, names, [], "hf")


@pytest.mark.parametrize("name", ["v_head.weight", "loras.weight", "base_layers.0.weight"])
def test_what_is_no_adapter(name):
    check_adapters([BASE, name], [BASE], [name], "hf")


def test_originals_are_those_with_a_trained_copy():
    trained = "h.modules_to_save.default.weight"
    names = ["h.original_module.weight", trained, "g.original_module.weight", "h.weight"]
    assert originals(names) == {"h.original_module.weight"}


def adapted(**options) -> tuple:
    """A small peft model whose adapters and saved modules count, and its config."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen2",
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config)
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], **options))
    with torch.no_grad():
        for name, each in model.named_parameters():
            if "modules_to_save" in name:
                each.fill_(7.0)
            if "lora_B" in name:
                each.fill_(0.5)
    return model, config


def told(comm: Communicator, *arguments, **options) -> str:
    with pytest.raises(UsageError) as raised:
        Resharder(*arguments, comm=comm, **options)
    return str(raised.value)


def test_a_wrapped_model_is_refused_with_the_way_to_merge_it():
    """As a module and as a dict, whole and in part; what the error says then works."""
    model, config = adapted()
    spec = Spec.from_config(config, "float32")

    def main(comm: Communicator) -> None:
        fused = LayoutRule.parse("vllm(tp=1)").bind(spec)
        out = {n: torch.zeros(s) for n, s, _ in fused.locals(0)}
        names = {n: torch.zeros(s) for n, s, _ in spec.tensors}
        for text in (
            told(comm, model, "hf", "vllm(tp=1)"),
            told(comm, model, "hf", "vllm(tp=1)", out=out, partial=True),
            told(comm, model, "hf", "hf", out=names),
            told(comm, model, "hf", "hf", out=names, partial=True),
            told(comm, model.state_dict(), "hf", fused),
            told(comm, model.state_dict(), "hf", fused, out=out, partial=True),
            told(comm, model.state_dict(), "hf", "hf", out=names, partial=True),
        ):
            assert "adapters have no place in " in text and "lora_A.default.weight'" in text
            assert (
                "model.merge_adapter(), pass {n: p for n, p in model.named_parameters() if "
                "'lora_' not in n}" in text
            )
        model.merge_adapter()
        merged = {n: p for n, p in model.named_parameters() if "lora_" not in n}
        got = reshard(merged, "hf", fused, comm=comm)
        query = model.get_base_model().get_submodule(LORA).base_layer.weight
        assert got[f"{LORA[:-6]}qkv_proj.weight"][:16].equal(query)
        model.unmerge_adapter()

    run_threads(1, main, transport="loopback")


def test_an_adapter_may_stay_where_its_base_does():
    model, _ = adapted()

    def main(comm: Communicator) -> None:
        name = "model.norm.weight"
        out = {name: torch.zeros(16)}
        moved = Resharder(model, "hf", "hf", comm=comm, out=out, partial=True)
        moved.run()
        assert out[name].equal(torch.ones(16)) and moved.report.tensors_applied == 1

    run_threads(1, main, transport="loopback")


def test_adapters_that_have_a_place_move():
    """From one peft model to another nothing is merged."""
    model, _ = adapted()
    other, _ = adapted()

    def main(comm: Communicator) -> None:
        source = {n: t for n, t in model.state_dict().items()}
        reshard(source, "hf", "hf", comm=comm, out=other.state_dict())
        for name, tensor in other.state_dict().items():
            assert tensor.equal(source[name])

    run_threads(1, main, transport="loopback")


@pytest.mark.parametrize("kind", ["all", "without originals"])
def test_a_module_that_trains_as_a_whole_arrives_as_trained(kind):
    model, config = adapted(modules_to_save=["lm_head"])
    skipped = ("lora_",) if kind == "all" else ("lora_", "original_module")

    def main(comm: Communicator) -> None:
        source = {
            n: t for n, t in model.state_dict().items() if not any(each in n for each in skipped)
        }
        target = Layout.vllm(tp=1).bind(Spec.from_config(config, "float32"))
        got = reshard(source, "hf", target, comm=comm)
        assert got["lm_head.weight"].eq(7).all()
        out = {"lm_head.weight": torch.zeros(64, 16)}
        Resharder(source, "hf", "hf", comm=comm, out=out, partial=True).run()
        assert out["lm_head.weight"].eq(7).all()

    run_threads(1, main, transport="loopback")


def test_an_original_alone_is_not_taken_for_the_module():
    model, config = adapted(modules_to_save=["lm_head"])

    def main(comm: Communicator) -> str:
        source = {
            n: t
            for n, t in model.state_dict().items()
            if "lora_" not in n and "modules_to_save" not in n
        }
        target = Layout.vllm(tp=1).bind(Spec.from_config(config, "float32"))
        return told(comm, source, "hf", target)

    (text,) = run_threads(1, main, transport="loopback")
    assert "lm_head.original_module.weight' in the source has no destination" in text
    assert "'lm_head.weight' in the destination received nothing" in text
