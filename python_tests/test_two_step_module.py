"""The two-step update of real modules: transformers in DDP, DTensors, modules it refuses."""

from __future__ import annotations

import pytest
import tiny_models as tiny
import two_step_scenarios as scenarios
from ranks import run_ranks

pytestmark = pytest.mark.python


@pytest.mark.parametrize(
    ("world", "gen", "dtype", "tie"),
    [
        (2, "vllm(tp=2)", "bfloat16", True),
        (2, "replicated(2)", "float32", False),
    ],
)
def test_a_transformers_model_in_ddp(tmp_path, world, gen, dtype, tie):
    """To the last bit; each rank keeps its share of masters and moments, and receives no more than
    it has to."""
    facts = tiny.config("LlamaForCausalLM", layers=2, tie=tie)
    results = run_ranks(world, scenarios.train_llama, str(tmp_path), facts, dtype, gen)
    model = results[0]["model"]
    assert sum(each["elements"] for each in results) == model
    for each in results:
        assert each["elements"] <= 1.05 * model / world + 1
        steps = 1  # AdamW counts steps per parameter
        assert each["moments"] <= 2 * each["elements"] + steps * 100
        report = each["report"]
        assert report.received_bytes == report.bound_bytes > 0
        assert ("lm_head.weight" in each["names"]) == (gen.startswith("replicated") or not tie)


def test_a_tensor_parallel_module(tmp_path):
    facts = tiny.config("LlamaForCausalLM", layers=2, vocab=8)
    for kinds in run_ranks(4, scenarios.train_tensor_parallel, str(tmp_path), facts):
        assert "DTensor" in kinds and "Parameter" in kinds


def test_modules_that_fsdp_has_sharded(tmp_path):
    for text in run_ranks(2, scenarios.sharded_modules_are_refused, str(tmp_path)):
        assert "'0' is sharded by FSDP" in text and "set_custom_reduce_scatter" in text
