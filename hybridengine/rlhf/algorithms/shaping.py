"""shaping: from the score of a response to a reward for each of its tokens."""

from __future__ import annotations

import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.algorithms.masks import (
    check_number,
    check_rows,
    check_scores,
    check_shapes,
    last_trainable,
    select,
    widen,
)


def token_rewards(
    scores: torch.Tensor,
    mask: torch.Tensor,
    *,
    turns: torch.Tensor | None = None,
    kl: torch.Tensor | None = None,
    kl_coef: float = 0.0,
) -> torch.Tensor:
    """Rewards [B, T]: `scores` [B] on the last trainable token of a row, less kl_coef * kl [B, T].

    `turns` [B, T]: the part of the scores that earlier tokens have earned; it stays where it is,
    and the last token gets the rest: the rewards of a row add up to its score all the same.

    Without gradient; 0 behind the mask. Throws UsageError on a score that is NaN or infinite, in a
    row that has trainable tokens.
    """
    check_rows(mask, scores=scores)
    check_number("kl_coef", kl_coef, 0.0)
    scores = widen(scores.detach())
    check_scores(scores, mask.any(1))
    if turns is not None:
        check_shapes(mask, turns=turns)
        turns = select(turns, mask).to(scores.dtype)
        scores = scores - turns.sum(1)
    rewards = torch.where(last_trainable(mask), scores[:, None], 0)
    if turns is not None:
        rewards = rewards + turns
    if kl is None:
        if kl_coef > 0:
            raise UsageError(
                f"kl_coef={kl_coef} weighs nothing: kl is None. Pass kl, or kl_coef=0."
            )
        return rewards
    check_shapes(mask, kl=kl)
    return rewards - kl_coef * select(kl.detach(), mask).to(rewards.dtype)


def overlong_penalty(
    lengths: torch.Tensor, *, max_length: int, buffer: int, factor: float = 1.0
) -> torch.Tensor:
    """float64 [B] to add to the scores, never above 0. `lengths` integer [B]: sampled tokens a row.

    0 up to max_length - buffer tokens, then falling in a straight line to -factor at max_length,
    and -factor beyond.
    """
    check_number("factor", factor, 0.0)
    if not 0 < buffer <= max_length:
        raise UsageError(
            f"buffer={buffer} does not fit in max_length={max_length}: the penalty grows over the "
            "last `buffer` tokens. Use 1 <= buffer <= max_length."
        )
    excess = lengths.double() - (max_length - buffer)
    return -factor * (excess / buffer).clamp(0.0, 1.0)
