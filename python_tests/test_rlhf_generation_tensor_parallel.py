"""Tensor-parallel generation on local ranks: the logits and the tokens of the whole model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from generation_models import engine, make_model, model_config, prompts
from ranks import run_threads
from rlhf_generation_scenarios import PARAMS, logits_and_tokens, logits_or_words

from hybridengine import Communicator, UsageError
from hybridengine.launch import run_local
from hybridengine.mapping import MAPPINGS
from hybridengine.rlhf.generation import generate
from hybridengine.rlhf.generation.tensor_parallel import shard_model

pytestmark = pytest.mark.python

_CASES: list[tuple[str, dict[str, Any]]] = [
    ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    ("Qwen2ForCausalLM", {"tie": True}),
    ("Qwen2ForCausalLM", {"kv_heads": 1}),
    ("Qwen3ForCausalLM", {"head_dim": 2}),
    ("Gemma3ForCausalLM", {"tie": True, "sliding_window": 4}),
]


@pytest.mark.slow
def test_two_ranks_are_the_whole_model() -> None:
    _check(run_local(2, logits_and_tokens, _CASES))


def test_one_rank_is_the_whole_model() -> None:
    _check(run_threads(1, logits_and_tokens, _CASES, transport="loopback"))


def _check(ranks: list[list[tuple[torch.Tensor, list[list[int]]]]]) -> None:
    for number, (architecture, facts) in enumerate(_CASES):
        whole = make_model(architecture, **facts)
        with torch.no_grad():
            expected = whole(torch.tensor([[2, 3, 4, 5], [9, 8, 23, 12]])).logits
        generated = generate(engine(whole, 8), prompts(5), PARAMS, range(5))
        for logits, tokens in (results[number] for results in ranks):
            assert torch.equal(logits, ranks[0][number][0])
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
            assert tokens == [generation.ids for generation in generated]


@pytest.mark.slow
def test_every_architecture_is_the_whole_model_or_is_refused() -> None:
    for found in run_local(2, logits_or_words, list(MAPPINGS)):
        refused = {name for name, each in found.items() if isinstance(each, str)}
        assert not refused & {name for name, _ in _CASES}
        for name, each in found.items():
            whole = make_model(name)
            if isinstance(each, str):
                assert each.startswith(f"models of type {whole.config.model_type!r} cannot be cut")
                assert each.endswith("Use a tp_size of 1.")
            else:
                with torch.no_grad():
                    expected = whole(torch.tensor([[2, 3, 4, 5], [9, 8, 23, 12]])).logits
                torch.testing.assert_close(each, expected, rtol=0, atol=1e-5)
        assert found["Olmo2ForCausalLM"] == (
            "models of type 'olmo2' cannot be cut over 2 ranks that generate: layers with fewer "
            "heads have 'model.layers.0.self_attn.k_norm.weight' as [8], the layout "
            "tensor_parallel(2) as [16]. Use a tp_size of 1."
        )


def _refusals(comm: Communicator) -> list[str]:
    words = []
    for facts in ({"heads": 3, "kv_heads": 3}, {"vocab": 23}, {"intermediate": 5}):
        try:
            shard_model(model_config(**facts), comm.rank, comm.world, comm)
        except UsageError as error:
            words.append(str(error))
    try:
        shard_model(model_config(), 1 - comm.rank, comm.world, comm)
    except UsageError as error:
        words.append(str(error))
    return words


def test_models_that_do_not_divide_are_refused_as_the_layout_does() -> None:
    heads, vocab, intermediate, rank = run_threads(2, _refusals, transport="loopback")[0]
    assert heads.startswith("3 attention heads do not divide by tp 2")
    assert vocab.startswith("vocabulary 23 does not divide by tp 2")
    assert intermediate.startswith("intermediate size 5 does not divide by tp 2")
    assert rank.startswith("shard 1 of 2 is asked for on rank 0 of a communicator of 2")
