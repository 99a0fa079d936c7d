"""sampling: one token for every row of logits, and its log-prob. Pure functions.

The log-probs are those that the trainer computes, by the same functions: after the temperature, and
over the support that sampling left.
"""

from __future__ import annotations

import torch

from hybridengine.rlhf.algorithms.logits import nucleus, token_log_probs
from hybridengine.rlhf.generation.params import SamplingParams


def choose(
    logits: torch.Tensor, params: SamplingParams, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (int64 [B]) and their log-probs (float32 or wider [B]) from `logits` [B, V].

    Row b takes the first token at which the running sum of probabilities, in the order of the
    vocabulary, exceeds uniforms[b] (float64 [B]) of the whole sum. Rows with NaN get some token
    with a log-prob that is NaN.
    """
    if params.greedy:
        tokens = logits.argmax(-1)
        return tokens, token_log_probs(logits, tokens)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    kept = support(logits, params)
    scaled = logits if kept is None else torch.where(kept, logits, -torch.inf)
    probs = torch.softmax(scaled / params.temperature, -1)
    # In float64: a sum of many small probabilities must not swallow the last ones.
    sums = probs.cumsum(-1, dtype=torch.float64)
    picked = torch.searchsorted(sums, (uniforms * sums[:, -1])[:, None], right=True)[:, 0]
    tokens = picked.clamp_(max=logits.shape[-1] - 1)
    return tokens, token_log_probs(logits, tokens, temperature=params.temperature, support=kept)


def support(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor | None:
    """bool [B, V]: the tokens that may be sampled; None where all may.

    top_k first, then top_p of the distribution over what it left. Among equal logits the nucleus
    takes the lower tokens first.
    """
    kept = None
    if 0 < params.top_k < logits.shape[-1]:
        best = logits.topk(params.top_k, -1).indices
        kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, best, True)
        logits = torch.where(kept, logits, -torch.inf)
    if params.top_p < 1:
        kept = nucleus(logits, params.top_p, temperature=params.temperature)
    return kept
