"""Tiny transformers models with random weights, engines over them, and plain forward passes."""

from __future__ import annotations

from typing import Any

import tiny_models
import torch

from hybridengine.rlhf.generation import Engine, Generation

VOCAB = 24
EOS, PAD = 1, 0

# Enough of a spread for greedy choices to be clear and for sampling to be no coin toss.
_SCALE = 0.5


def model_config(architecture: str = "Qwen2ForCausalLM", **facts: Any) -> Any:
    from transformers import CONFIG_MAPPING

    shape: dict[str, Any] = {"vocab": VOCAB, "hidden": 16, "intermediate": 12, "head_dim": 8}
    own = {key: facts.pop(key) for key in list(facts) if key not in _SHAPE}
    raw = tiny_models.config(architecture, **{"layers": 2, **shape, **facts})
    kind = CONFIG_MAPPING[raw["model_type"]]
    return kind(**raw, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=2, **own)


_SHAPE = {"hidden", "heads", "kv_heads", "head_dim", "intermediate", "layers", "vocab", "tie"}


def make_model(
    architecture: str = "Qwen2ForCausalLM", *, dtype: torch.dtype = torch.float64, **facts: Any
) -> Any:
    """In float64 unless asked otherwise: rounding then decides no choice of a token."""
    from transformers import AutoModelForCausalLM

    attention = facts.pop("attention", "sdpa")
    torch.manual_seed(7)
    config = model_config(architecture, **facts)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0, _SCALE)
    return model.eval()


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


def prompts(count: int, longest: int = 7, seed: int = 3) -> list[list[int]]:
    """Of all lengths from 1 to `longest`, in turn."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [1 + number % longest for number in range(count)]
    return [torch.randint(2, VOCAB, (n,), generator=generator).tolist() for n in lengths]


@torch.no_grad()
def row_logits(model: Any, prompt: list[int], ids: list[int]) -> torch.Tensor:
    """[len(ids), V]: what the model says before each token of a response, by a plain pass."""
    logits = model(torch.tensor([prompt + ids])).logits[0]
    return logits[len(prompt) - 1 : -1]
