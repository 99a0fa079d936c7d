"""The built-in engine: against transformers' own generation and plain forward passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from generation_models import EOS, PAD, VOCAB, make_model, prompts, row_logits

from hybridengine import UsageError
from hybridengine.rlhf.generation import Engine, Generation, SamplingParams

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


def engine(model: Any, slots: int = 4, max_model_len: int = 64, **options: Any) -> Engine:
    return Engine(
        model,
        eos_token_ids=(EOS,),
        pad_token_id=PAD,
        max_model_len=max_model_len,
        max_num_seqs=slots,
        **options,
    )


def ids(generations: list[Generation]) -> list[list[int]]:
    return [generation.ids for generation in generations]


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
    found = engine(model).generate(given, params, range(9))
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
            given, engine(model).generate(given, params, range(7)), strict=True
        ):
            scaled = row_logits(model, prompt, found.ids) / temperature
            expected = scaled.log_softmax(-1)[range(len(found.ids)), found.ids]
            assert found.log_probs == pytest.approx(expected.tolist(), abs=1e-5)


def test_greedy_log_probs_are_of_temperature_1() -> None:
    model = make_model()
    params = SamplingParams(max_tokens=5, greedy=True, temperature=0.3, top_k=1, ignore_eos=True)
    (found,) = engine(model).generate([[4, 5]], params, [0])
    expected = row_logits(model, [4, 5], found.ids).log_softmax(-1)[range(5), found.ids]
    assert found.log_probs == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.parametrize("facts", [{}, {"top_k": 5, "top_p": 0.9}])
def test_a_sample_does_not_depend_on_the_others(facts: dict[str, Any]) -> None:
    model = make_model()
    given = prompts(11)
    params = SamplingParams(max_tokens=40, seed=2**40 + 1, **facts)
    one_by_one = [
        engine(model).generate([prompt], params, [number])[0] for number, prompt in enumerate(given)
    ]
    lengths = {len(generation.ids) for generation in one_by_one}
    assert min(lengths) < 16 < max(lengths)  # some slots are refilled, some draw for long
    for slots in (1, 3, 8, 64):
        assert ids(engine(model, slots).generate(given, params, range(11))) == ids(one_by_one)
    halves = [
        engine(model, 3).generate(given[part], params, range(11)[part])
        for part in (slice(0, 11, 2), slice(1, 11, 2))
    ]
    assert ids(halves[0]) == ids(one_by_one[0::2])
    assert ids(halves[1]) == ids(one_by_one[1::2])


def test_the_seed_and_the_sample_decide() -> None:
    model = make_model()

    def sample(seed: int, sample_id: int) -> list[int]:
        params = SamplingParams(max_tokens=20, seed=seed, ignore_eos=True)
        return engine(model).generate([[3, 4]], params, [sample_id])[0].ids

    assert sample(1, 2) == sample(1, 2)
    outcomes = [sample(0, 0), sample(1, 0), sample(0, 1), sample(2**32, 0), sample(0, 2**32)]
    assert len(set(map(tuple, outcomes))) == len(outcomes)


def test_equal_prompts_share_their_first_pass_and_differ_after() -> None:
    model = make_model()
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    given = [[5, 6, 7]] * 6 + [[8, 9]]
    found = engine(model, 7).generate(given, params, range(7))
    alone = [
        engine(model).generate([prompt], params, [number])[0] for number, prompt in enumerate(given)
    ]
    assert ids(found) == ids(alone)
    assert len(set(map(tuple, ids(found)))) == 7


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_responses_end_at_their_limits(slots: int) -> None:
    given = [[3] * length for length in (1, 4, 9, 7, 2)]
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    found = engine(make_model(), slots, max_model_len=10).generate(given, params, range(5))
    assert [len(generation.ids) for generation in found] == [6, 6, 1, 3, 6]
    assert {generation.finish_reason for generation in found} == {"length"}
    assert all(len(each.log_probs) == len(each.ids) for each in found)


def test_an_end_at_the_last_token_counts_as_stop() -> None:
    model = make_model()
    (found,) = engine(model).generate([[4]], SamplingParams(max_tokens=1, greedy=True), [0])
    params = SamplingParams(max_tokens=1, greedy=True, stop_token_ids=(found.ids[0],))
    (stopped,) = engine(model).generate([[4]], params, [0])
    assert (stopped.ids, stopped.finish_reason) == (found.ids, "stop")


def test_stop_tokens_and_eos() -> None:
    model = make_model()
    free = SamplingParams(max_tokens=30, ignore_eos=True)
    texts = ids(engine(model).generate(prompts(6), free, range(6)))

    def cut(stops: set[int]) -> list[list[int]]:
        ends = [next((i for i, t in enumerate(text) if t in stops), 29) for text in texts]
        return [text[: end + 1] for text, end in zip(texts, ends, strict=True)]

    def found(**facts: Any) -> list[list[int]]:
        params = SamplingParams(max_tokens=30, **facts)
        return ids(engine(model).generate(prompts(6), params, range(6)))

    assert found() == cut({EOS}) != texts
    assert found(stop_token_ids=(7, 9)) == cut({EOS, 7, 9}) != cut({EOS})
    assert found(stop_token_ids=(7, 9), ignore_eos=True) == cut({7, 9})


def test_no_prompts() -> None:
    assert engine(make_model()).generate([], SamplingParams(max_tokens=1), []) == []


def test_weights_may_change_between_calls() -> None:
    model = make_model()
    generator = engine(model)
    params = SamplingParams(max_tokens=6, greedy=True, ignore_eos=True)
    before = ids(generator.generate([[4, 5]], params, [0]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1)  # in place
    written = ids(generator.generate([[4, 5]], params, [0]))
    assert written == ids(engine(model).generate([[4, 5]], params, [0])) != before
    generator.free()
    generator.load_weights({name: -p.detach() for name, p in model.named_parameters()})
    assert ids(generator.generate([[4, 5]], params, [0])) == before


def test_the_model_is_left_as_it_was() -> None:
    model = make_model().train()
    engine(model).generate([[4]], SamplingParams(max_tokens=2), [0])
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    model(torch.tensor([[3, 4]])).logits.sum().backward()


def test_few_bytes_of_cache_mean_few_slots() -> None:
    model = make_model()
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    given = [[3, 4], [5], [6, 7], [8, 9]]
    position = 2 * 2 * 2 * 8 * 8  # layers, keys and values, kv heads, head size, bytes of float64
    found = engine(model, 4, cache_bytes=2 * 9 * position).generate(given, params, range(4))
    assert ids(found) == ids(engine(model).generate(given, params, range(4)))
    with pytest.raises(UsageError, match=f"of 9 tokens needs {9 * position} bytes of cache"):
        engine(model, 4, cache_bytes=9 * position - 1).generate(given, params, range(4))


def _generate(**facts: Any) -> Any:
    given = {"prompts": [[3, 4], [5]], "sample_ids": [8, 9], "max_tokens": 2, **facts}
    params = SamplingParams(
        max_tokens=given["max_tokens"], stop_token_ids=given.get("stop_token_ids", ())
    )
    return engine(make_model(), max_model_len=6).generate(
        given["prompts"], params, given["sample_ids"]
    )


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"prompts": [[3], []]}, r"prompt 1 \(sample 9\) is empty"),
        ({"prompts": [[3] * 6, [3]]}, r"prompt 0 \(sample 8\) has 6 tokens.*max_model_len 6"),
        ({"prompts": [[3], [VOCAB]]}, r"prompt 1 \(sample 9\) has token 24.*vocabulary has 24"),
        ({"prompts": [[-1], [3]]}, r"prompt 0 \(sample 8\) has token -1"),
        ({"sample_ids": [1]}, "1 sample ids for 2 prompts"),
        ({"sample_ids": [1, 1]}, "sample id 1 is given twice"),
        ({"stop_token_ids": (VOCAB,)}, "token 24 is to end responses"),
    ],
)
def test_what_cannot_run_is_refused(facts: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        _generate(**facts)


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_logits_name_the_sample_and_spread_no_further(value: float, greedy: bool) -> None:
    model = make_model()
    generator = engine(model)
    table = model.get_input_embeddings().weight
    kept = table[9].clone()
    params = SamplingParams(max_tokens=3, greedy=greedy)
    with torch.no_grad():
        table[9] = value
    with pytest.raises(UsageError, match=r"prompt 1 \(sample 6\) has logits.*token 0"):
        generator.generate([[3, 4], [5, 9], [6]], params, [5, 6, 7])
    with torch.no_grad():
        table[9] = kept
    found = generator.generate([[3, 4], [5, 9], [6]], params, [5, 6, 7])
    assert ids(found) == ids(engine(model).generate([[3, 4], [5, 9], [6]], params, [5, 6, 7]))


def test_models_that_cannot_run_on_slots_are_refused() -> None:
    model = make_model()
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(UsageError, match="layers of qwen2 are of kind linear_attention"):
        engine(model)
    model = make_model()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(UsageError, match='"sdpa"'):
        engine(model)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": 0.0}, "temperature is 0.0.*greedy"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"top_k": -1}, "top_k is -1"),
        ({"stop": ("",)}, "stop is"),
        ({"stop": "text"}, "stop is 'text'"),
        ({"stop_token_ids": (-2,)}, "stop_token_ids is -2"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_params_that_make_no_sense_are_refused(facts: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SamplingParams(**{"max_tokens": 4, **facts})


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="max_model_len is 1"):
        engine(make_model(), max_model_len=1)
    with pytest.raises(UsageError, match="max_num_seqs is 0"):
        engine(make_model(), slots=0)
