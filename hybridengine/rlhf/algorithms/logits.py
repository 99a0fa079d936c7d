"""logits: log-probs and entropy of the distribution that is sampled from.

That distribution is softmax(logits / temperature), cut to a support if sampling was. Rollout and
trainer use these functions with the same arguments; else their ratio is not 1 for equal weights.
"""

from __future__ import annotations

import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.algorithms.masks import check_number, widen


def token_log_probs(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    *,
    temperature: float = 1.0,
    support: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Log-probs [...] of `tokens` (int64 [...]) under `logits` (floating [..., V]).

    `support`: bool [..., V], the tokens that sampling could choose, see `nucleus`; the others have
    probability 0. `mask`: bool [...]; where it is false logits may be NaN, their gradient is 0 and
    the result is 0.
    """
    if tokens.shape != logits.shape[:-1]:
        raise UsageError(
            f"tokens is {list(tokens.shape)} for logits of shape {list(logits.shape)}. "
            "Pass one token for every row of logits."
        )
    scaled = _scaled(logits, temperature, support, mask)
    if mask is not None:
        tokens = torch.where(mask, tokens, 0)
    log_probs = scaled.gather(-1, tokens[..., None])[..., 0] - scaled.logsumexp(-1)
    return log_probs if mask is None else torch.where(mask, log_probs, 0)


def entropy(
    logits: torch.Tensor, *, temperature: float = 1.0, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """-sum p log p [...] of `logits` [..., V]; a logit of -inf adds 0. `mask` as above."""
    scaled = _scaled(logits, temperature, None, mask)
    log_probs = scaled - scaled.logsumexp(-1, keepdim=True)
    terms = log_probs.exp() * torch.where(log_probs == -torch.inf, 0, log_probs)
    total = -terms.sum(-1)
    return total if mask is None else torch.where(mask, total, 0)


@torch.no_grad()
def nucleus(logits: torch.Tensor, top_p: float, *, temperature: float = 1.0) -> torch.Tensor:
    """bool [..., V]: the fewest most likely tokens whose probabilities add up to `top_p` or more.

    Made once, where the tokens are sampled, and passed on with them as `support`: made anew from
    trained weights it would be another one.
    """
    check_number("top_p", top_p, 0.0, 1.0, above=True)
    probs = _scaled(logits, temperature, None, None).softmax(-1)
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    kept = ordered.cumsum(-1) - ordered < top_p
    return torch.zeros_like(kept).scatter(-1, order, kept)


def _scaled(
    logits: torch.Tensor,
    temperature: float,
    support: torch.Tensor | None,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    check_number("temperature", temperature, 0.0, above=True)
    logits = widen(logits)
    if mask is not None:
        if mask.shape != logits.shape[:-1]:
            raise UsageError(
                f"mask is {list(mask.shape)} for logits of shape {list(logits.shape)}. "
                "Pass one bool for every row of logits."
            )
        logits = torch.where(mask[..., None], logits, 0)
    if support is not None:
        kept = support if mask is None else support | ~mask[..., None]
        logits = torch.where(kept, logits, -torch.inf)
    return logits / temperature
