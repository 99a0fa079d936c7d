"""The built-in engine: against transformers' own generation and plain forward passes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from generation_models import EOS, engine, ids, make_model, prompts, row_logits

from hybridengine import UsageError
from hybridengine.mapping import MAPPINGS
from hybridengine.rlhf.generation import Generation, SamplingParams, decoder, generate
from hybridengine.rlhf.trainer.partition import spread_groups

pytestmark = pytest.mark.python

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("LlamaForCausalLM", {}),
    ("LlamaForCausalLM", {"attention": "eager", "attention_bias": True, "kv_heads": 4}),
    ("MistralForCausalLM", {"sliding_window": 3}),
    ("Qwen2ForCausalLM", {"tie": True, "kv_heads": 1}),
    ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ("Qwen3ForCausalLM", {}),
    ("GemmaForCausalLM", {"tie": True}),
    ("Gemma2ForCausalLM", {"tie": True, "sliding_window": 4, "attention": "eager"}),
    ("Gemma3ForCausalLM", {"tie": True, "sliding_window": 4}),
]
MODELS += [(name, {}) for name in MAPPINGS if name not in dict(MODELS)]


@torch.no_grad()
def reference(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """What transformers' greedy search gives one prompt alone."""
    given = torch.tensor([prompt])
    out = model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=tokens, do_sample=False
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize(("architecture", "facts"), MODELS)
def test_greedy_is_that_of_transformers(architecture: str, facts: dict[str, Any]) -> None:
    model = make_model(architecture, **facts)
    given = prompts(9)
    params = SamplingParams(max_tokens=11, greedy=True)
    found = generate(engine(model), given, params, range(9))
    assert ids(found) == [reference(model, prompt, 11) for prompt in given]
    for generation in found:
        ended = generation.ids[-1] == EOS
        assert generation.finish_reason == ("stop" if ended else "length")
        assert len(generation.ids) == 11 or ended


@pytest.mark.parametrize(("architecture", "facts"), MODELS)
def test_log_probs_are_those_of_a_forward_pass(architecture: str, facts: dict[str, Any]) -> None:
    model = make_model(architecture, dtype=torch.float32, **facts)
    given = prompts(7)
    for temperature in (0.5, 1.0, 2.0):
        params = SamplingParams(max_tokens=9, temperature=temperature, seed=5)
        for prompt, found in zip(
            given, generate(engine(model), given, params, range(7)), strict=True
        ):
            scaled = row_logits(model, prompt, found.ids) / temperature
            expected = scaled.log_softmax(-1)[range(len(found.ids)), found.ids]
            assert found.log_probs == pytest.approx(expected.tolist(), abs=1e-5)


def test_greedy_log_probs_are_of_temperature_1() -> None:
    model = make_model()
    params = SamplingParams(max_tokens=5, greedy=True, temperature=0.3, top_k=1, ignore_eos=True)
    (found,) = generate(engine(model), [[4, 5]], params, [0])
    expected = row_logits(model, [4, 5], found.ids).log_softmax(-1)[range(5), found.ids]
    assert found.log_probs == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.parametrize("facts", [{}, {"top_k": 5, "top_p": 0.9}])
def test_a_sample_does_not_depend_on_the_others(facts: dict[str, Any]) -> None:
    model = make_model()
    given = prompts(11)
    params = SamplingParams(max_tokens=40, seed=2**40 + 1, **facts)
    one_by_one = [
        generate(engine(model), [prompt], params, [number])[0]
        for number, prompt in enumerate(given)
    ]
    lengths = {len(generation.ids) for generation in one_by_one}
    assert min(lengths) < 16 < max(lengths)  # some slots are refilled, some draw for long
    for slots in (1, 3, 8, 64):
        assert ids(generate(engine(model, slots), given, params, range(11))) == ids(one_by_one)
    halves = [
        generate(engine(model, 3), given[part], params, range(11)[part])
        for part in (slice(0, 11, 2), slice(1, 11, 2))
    ]
    assert ids(halves[0]) == ids(one_by_one[0::2])
    assert ids(halves[1]) == ids(one_by_one[1::2])


def test_the_seed_and_the_sample_decide() -> None:
    model = make_model()

    def sample(seed: int, sample_id: int) -> list[int]:
        params = SamplingParams(max_tokens=20, seed=seed, ignore_eos=True)
        return generate(engine(model), [[3, 4]], params, [sample_id])[0].ids

    assert sample(1, 2) == sample(1, 2)
    outcomes = [sample(0, 0), sample(1, 0), sample(0, 1), sample(2**32, 0), sample(0, 2**32)]
    assert len(set(map(tuple, outcomes))) == len(outcomes)


def test_equal_prompts_share_their_first_pass_and_differ_after() -> None:
    model = make_model()
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    given = [[5, 6, 7]] * 6 + [[8, 9]]
    found = generate(engine(model, 7), given, params, range(7))
    alone = [
        generate(engine(model), [prompt], params, [number])[0]
        for number, prompt in enumerate(given)
    ]
    assert ids(found) == ids(alone)
    assert len(set(map(tuple, ids(found)))) == 7


@pytest.mark.parametrize("slots", [1, 3, 5, 64])
@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Gemma3ForCausalLM"])
def test_a_prompt_is_prefilled_once_for_all_its_samples(architecture: str, slots: int) -> None:
    """Eight samples of six prompts on two ranks, with fewer slots than samples of a prompt too."""
    model = make_model(architecture, sliding_window=4)
    given = [prompt for prompt in prompts(6, longest=9) for _ in range(8)]
    groups = [row // 8 for row in range(len(given))]
    params = SamplingParams(max_tokens=20, seed=2)
    whole = ids(generate(engine(model, 64), given, params, range(48)))
    found, prefilled = {}, 0
    for rows in spread_groups(groups, [len(prompt) for prompt in given], 2):
        rank = engine(model, slots)
        part = generate(rank, [given[row] for row in rows], params, rows)
        found |= dict(zip(rows, ids(part), strict=True))
        prefilled += rank._decoder.prefill_tokens
    assert [found[row] for row in range(48)] == whole
    # All of a prompt but its last token, which is decoded like those that follow.
    assert prefilled == sum(len(prompt) - 1 for prompt in given[::8])


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_responses_end_at_their_limits(slots: int) -> None:
    given = [[3] * length for length in (1, 4, 9, 7, 2)]
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    found = generate(engine(make_model(), slots, max_model_len=10), given, params, range(5))
    assert [len(generation.ids) for generation in found] == [6, 6, 1, 3, 6]
    assert {generation.finish_reason for generation in found} == {"length"}
    assert all(len(each.log_probs) == len(each.ids) for each in found)


def test_an_end_at_the_last_token_counts_as_stop() -> None:
    model = make_model()
    (found,) = generate(engine(model), [[4]], SamplingParams(max_tokens=1, greedy=True), [0])
    params = SamplingParams(max_tokens=1, greedy=True, stop_token_ids=(found.ids[0],))
    (stopped,) = generate(engine(model), [[4]], params, [0])
    assert (stopped.ids, stopped.finish_reason) == (found.ids, "stop")


def test_stop_tokens_and_eos() -> None:
    model = make_model()
    free = SamplingParams(max_tokens=30, ignore_eos=True)
    texts = ids(generate(engine(model), prompts(6), free, range(6)))

    def cut(stops: set[int]) -> list[list[int]]:
        ends = [next((i for i, t in enumerate(text) if t in stops), 29) for text in texts]
        return [text[: end + 1] for text, end in zip(texts, ends, strict=True)]

    def found(**facts: Any) -> list[list[int]]:
        params = SamplingParams(max_tokens=30, **facts)
        return ids(generate(engine(model), prompts(6), params, range(6)))

    assert found() == cut({EOS}) != texts
    assert found(stop_token_ids=(7, 9)) == cut({EOS, 7, 9}) != cut({EOS})
    assert found(stop_token_ids=(7, 9), ignore_eos=True) == cut({7, 9})


def test_what_ends_a_response_comes_after_min_tokens() -> None:
    model = make_model()

    def found(least: int, **facts: Any) -> list[Generation]:
        params = SamplingParams(max_tokens=30, min_tokens=least, stop_token_ids=(7, 9), **facts)
        return generate(engine(model, 4), prompts(6), params, range(6))

    free = found(0)
    assert min(len(each.ids) for each in free) < 6
    for prompt, response in zip(prompts(6), found(6), strict=True):
        assert not {EOS, 7, 9} & set(response.ids[:6])
        logits = row_logits(model, prompt, response.ids)
        logits[:6, [EOS, 7, 9]] = -torch.inf
        expected = logits.log_softmax(-1)[range(len(response.ids)), response.ids]
        assert response.log_probs == pytest.approx(expected.tolist(), abs=1e-9)
    assert any(response.finish_reason == "stop" for response in found(6))
    assert not any({EOS, 7, 9} & set(each.ids[:6]) for each in found(6, greedy=True))
    assert ids(found(1)) != ids(free)
    whole = found(30)
    assert all((len(r.ids), r.finish_reason) == (30, "length") for r in whole)


def test_no_prompts() -> None:
    assert generate(engine(make_model()), [], SamplingParams(max_tokens=1), []) == []


def test_weights_may_change_between_calls() -> None:
    model = make_model()
    generator = engine(model)
    params = SamplingParams(max_tokens=6, greedy=True, ignore_eos=True)
    before = ids(generate(generator, [[4, 5]], params, [0]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1)  # in place
    written = ids(generate(generator, [[4, 5]], params, [0]))
    assert written == ids(generate(engine(model), [[4, 5]], params, [0])) != before
    generator.free()
    generator.load_weights({name: -p.detach() for name, p in model.named_parameters()}, 1)
    assert ids(generate(generator, [[4, 5]], params, [0])) == before


def test_the_model_is_left_as_it_was() -> None:
    model = make_model().train()
    generate(engine(model), [[4]], SamplingParams(max_tokens=2), [0])
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    model(torch.tensor([[3, 4]])).logits.sum().backward()


def test_calls_of_any_size_may_follow_each_other() -> None:
    model = make_model()
    generator = engine(model, 6)
    for count, tokens in ((2, 5), (9, 3), (3, 40), (6, 2)):
        given, params = prompts(count, seed=tokens), SamplingParams(tokens, ignore_eos=True)
        found = generate(generator, given, params, range(count))
        assert ids(found) == ids(generate(engine(model, 6), given, params, range(count)))


def test_long_prompts_enter_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    given, params = prompts(9, longest=9), SamplingParams(max_tokens=4, greedy=True)
    whole = ids(generate(engine(model, 9), given, params, range(9)))
    monkeypatch.setattr(decoder, "_PROMPT_TOKENS", 7)  # less than the longest prompt
    assert ids(generate(engine(model, 9), given, params, range(9))) == whole


def test_few_bytes_of_cache_mean_few_slots() -> None:
    model = make_model()
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    given = [[3, 4], [5], [6, 7], [8, 9]]
    position = 2 * 2 * 2 * 8 * 8  # layers, keys and values, kv heads, head size, bytes of float64
    found = generate(
        engine(model, 4, cache_bytes=lambda: 2 * 9 * position), given, params, range(4)
    )
    assert ids(found) == ids(generate(engine(model), given, params, range(4)))
    with pytest.raises(UsageError, match=f"of 9 tokens needs {9 * position} bytes of cache"):
        generate(engine(model, 4, cache_bytes=lambda: 9 * position - 1), given, params, range(4))


def test_importing_it_imports_no_transformers() -> None:
    code = (
        "import sys, hybridengine.rlhf.generation, hybridengine.rlhf.generation.tensor_parallel;"
        "sys.exit(bool({'transformers', 'accelerate'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
