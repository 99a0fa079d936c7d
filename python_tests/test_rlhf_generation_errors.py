"""The built-in engine: what is refused, and what its errors name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from generation_models import VOCAB, engine, ids, make_model

from hybridengine import UsageError
from hybridengine.rlhf.generation import Engine, SamplingParams, generate

pytestmark = pytest.mark.python


def _generate(**facts: Any) -> Any:
    given = {"prompts": [[3, 4], [5]], "sample_ids": [8, 9], "max_tokens": 2, **facts}
    params = SamplingParams(
        max_tokens=given["max_tokens"], stop_token_ids=given.get("stop_token_ids", ())
    )
    return generate(
        engine(make_model(), max_model_len=6), given["prompts"], params, given["sample_ids"]
    )


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"prompts": [[3], []]}, "prompt of sample 9 is empty"),
        ({"prompts": [[3] * 6, [3]]}, r"prompt of sample 8 has 6 tokens.*max_model_len 6"),
        ({"prompts": [[3], [VOCAB]]}, r"prompt of sample 9 has token 24.*vocabulary has 24"),
        ({"prompts": [[-1], [3]]}, r"prompt of sample 8 has token -1"),
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
    with pytest.raises(UsageError, match=r"sample 6 has logits.*token 0"):
        generate(generator, [[3, 4, 5, 6], [5, 9], [6]], params, [5, 6, 7])
    with torch.no_grad():
        table[9] = kept
    # Their slots are read up to the longest row, beyond what the short ones have written.
    after = [[3, 4, 5], [5], [6]]
    found = generate(generator, after, params, [5, 6, 7])
    assert ids(found) == ids(generate(engine(model), after, params, [5, 6, 7]))


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
        ({"min_tokens": 5}, "min_tokens is 5, more than max_tokens 4"),
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


@pytest.mark.parametrize("pad", [None, -1, VOCAB])
def test_a_pad_token_that_is_none_is_refused(pad: Any) -> None:
    with pytest.raises(UsageError, match=f"pad_token_id is {pad}, but.*vocabulary has {VOCAB}"):
        Engine(make_model(), eos_token_ids=(), pad_token_id=pad, max_model_len=4, max_num_seqs=1)
