"""Where the config of a model is found, and what is said where there is none that helps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny_models as tiny
import torch
from ranks import run_threads

from hybridengine import Communicator, LayoutRule, Spec, UsageError, reshard
from hybridengine.layouts.model_config import config_of

# Not under sanitizers: gloo's threads, of which they know nothing, are in this process.
pytestmark = pytest.mark.python


def holder(facts: dict, **modules: torch.nn.Module) -> torch.nn.Module:
    module = torch.nn.Module()
    if facts:
        module.config = SimpleNamespace(to_dict=lambda: facts)
    for name, each in modules.items():
        module.add_module(name, each)
    return module


def test_wrappers_are_looked_through():
    """As DistributedDataParallel, torch.compile and FullyShardedDataParallel keep it."""
    inner = holder(tiny.config())
    for name in ("module", "_orig_mod", "_fsdp_wrapped_module"):
        config, _ = config_of(holder({}, module=holder({}, **{name: inner})))
        assert config == Spec.from_config(tiny.config()).config
    assert config_of(holder({}, body=inner))[0] is None


def test_a_model_inside_distributed_data_parallel_is_cut_by_its_config(tmp_path):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = dict(hidden_size=8, intermediate_size=6, num_attention_heads=2, vocab_size=9)
    config = AutoConfig.for_model("qwen2", num_hidden_layers=1, num_key_value_heads=2, **sizes)
    model = AutoModelForCausalLM.from_config(config)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        expected = reshard(model, "hf", "vllm(tp=1)")
        wrapped = DistributedDataParallel(model)
        tiny.assert_same(reshard(wrapped, "hf", "vllm(tp=1)"), expected)
    finally:
        dist.destroy_process_group()


PHI = {"model_type": "phi3", "architectures": None}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            {"w": torch.ones(2, 2)},
            "vllm(tp=2) cuts tensors by their meaning, but a dict of tensors has no config. Pass "
            "dst = LayoutRule.parse('vllm(tp=2)').bind(Spec.from_config(model.config)).",
        ),
        (
            torch.nn.Linear(2, 2),
            "the module has no transformers config. Make a Mapping for it (docs/layouts.md) and "
            "pass LayoutRule.parse('vllm(tp=2)', mapping=mapping).",
        ),
        (
            holder(PHI, w=torch.nn.Linear(2, 2)),
            "but model_type 'phi3' is not mapped; mapped are gemma, gemma2, ",
        ),
        (
            holder(PHI | {"architectures": ["Phi3ForCausalLM"]}, w=torch.nn.Linear(2, 2)),
            "but Phi3ForCausalLM (model_type 'phi3') is not mapped; mapped are gemma, ",
        ),
        (
            holder({"model_type": "qwen2"}, w=torch.nn.Linear(2, 2)),
            "its config does not say enough: ",
        ),
    ],
)
def test_what_is_said_without_a_config(model, expected):
    def main(comm: Communicator) -> str:
        with pytest.raises(UsageError) as raised:
            reshard(model, "replicated(2)", "vllm(tp=2)", comm=comm)
        return str(raised.value)

    for text in run_threads(2, main, transport="loopback"):
        assert expected in text


def test_the_line_that_is_shown_for_a_dict_works():
    """A state_dict and the config of its model."""
    facts = tiny.config()
    full = tiny.weights(Spec.from_config(facts))
    dst = LayoutRule.parse("vllm(tp=2)").bind(Spec.from_config(facts))

    def main(comm: Communicator) -> None:
        got = reshard(full, "replicated(2)", dst, comm=comm)
        tiny.assert_same(got, tiny.vllm(full, facts, 2, comm.rank))

    run_threads(2, main, transport="loopback")


def test_a_checkpoint_that_is_not_mapped_says_so(tmp_path):
    from small_checkpoint import write_checkpoint

    write_checkpoint(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "Phi3ForCausalLM"))
    spec = Spec.from_hf(tmp_path)
    with pytest.raises(UsageError, match=r"but Phi3ForCausalLM is not mapped; mapped are gemma"):
        LayoutRule.parse("vllm(tp=2)").bind(spec.with_dtype("bfloat16"))
