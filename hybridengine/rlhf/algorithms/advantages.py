"""advantages: how much better each sampled token was than expected.

Vocabulary: a *step* is one trainable token; a *row* is one response; the rows that answer one
prompt are its *group*; the *score* of a row is the sum of its rewards. All arithmetic is in
float64, results have the type of the rewards (at least float32), are 0 behind the mask, and carry
no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.algorithms.groups import Groups
from hybridengine.rlhf.algorithms.masks import check_number, check_rows, check_shapes, widen
from hybridengine.rlhf.algorithms.moments import AllReduce, whiten
from hybridengine.rlhf.registry import Registry


@dataclass(frozen=True)
class Rollout:
    """What was sampled and what it earned. B rows of T tokens; only some algorithms need the rest.

    The rows of a group lie in the same Rollout, or on several ranks: `num_groups` is given then,
    and they are compared over the ranks of `all_reduce`. Rewards behind the mask do not count.
    """

    rewards: torch.Tensor  # floating [B, T], see shaping.token_rewards
    mask: torch.Tensor  # bool [B, T]
    groups: torch.Tensor | None = None  # integer [B], equal for rows of the same prompt
    num_groups: int | None = None  # of all ranks, numbered from 0; None: they lie whole in here
    values: torch.Tensor | None = None  # floating [B, T], what the critic expects at each step
    truncated: torch.Tensor | None = None  # bool [B], stopped by a limit; None: all finished
    last_values: torch.Tensor | None = None  # floating [B], the critic behind the last step
    baselines: torch.Tensor | None = None  # floating [B], score of the greedy response

    def __post_init__(self) -> None:
        check_shapes(self.mask, rewards=self.rewards)
        if self.values is not None:
            check_shapes(self.mask, values=self.values)
        rows = {name: getattr(self, name) for name in _ROW_FIELDS}
        check_rows(self.mask, **{name: row for name, row in rows.items() if row is not None})
        if self.truncated is not None and self.truncated.dtype != torch.bool:
            raise UsageError(f"truncated is {self.truncated.dtype}, not bool. Pass one bool a row.")

    def need(self, field: str, algorithm: str) -> torch.Tensor:
        """The tensor `field`. Throws UsageError if it was not given."""
        tensor: torch.Tensor | None = getattr(self, field)
        if tensor is None:
            raise UsageError(
                f"advantage {algorithm!r} needs {field}: the rollout has none. "
                f"Pass Rollout({field}=...), or choose another advantage."
            )
        return tensor


_ROW_FIELDS = ("groups", "truncated", "last_values", "baselines")


class Advantages(NamedTuple):
    """`advantages` [B, T]; `returns` [B, T], the targets of the critic, None without one."""

    advantages: torch.Tensor
    returns: torch.Tensor | None


advantage: Registry[Advantages] = Registry("advantage")


@advantage("gae")
@torch.no_grad()
def gae(
    rollout: Rollout,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    normalize: bool = True,
    all_reduce: AllReduce | None = None,
) -> Advantages:
    """Generalised advantage estimation over steps. Needs `values`.

    A masked token between steps (tool output) is no step: value and advantage pass it unchanged. A
    truncated row continues with its `last_values`, a finished one with 0. `normalize` whitens the
    advantages over all ranks (collective); `returns` come from the advantages before that.
    """
    check_number("gamma", gamma, 0.0, 1.0)
    check_number("lam", lam, 0.0, 1.0)
    values = torch.where(rollout.mask, rollout.need("values", "gae").double(), 0)
    advantages = _backward(rollout, values, _bootstrap(rollout), gamma, lam)
    returns = torch.where(rollout.mask, advantages + values, 0)
    if normalize:
        advantages = whiten(advantages, rollout.mask, all_reduce=all_reduce)
    return Advantages(_as_rewards(advantages, rollout), _as_rewards(returns, rollout))


@advantage("grpo")
@torch.no_grad()
def grpo(
    rollout: Rollout,
    *,
    scale: bool = True,
    eps: float = 1e-6,
    all_reduce: AllReduce | None = None,
) -> Advantages:
    """(score - mean) / (std + eps) within the group, on every step of the row. Needs `groups`.

    `std` divides by n - 1. `scale=False` leaves the division out. A group of one, and one whose
    scores are equal, gives exactly 0.
    """
    check_number("eps", eps, 0.0)
    groups = _groups(rollout, "grpo", all_reduce)
    advantages = groups.centred
    if scale:
        std = groups.std()
        advantages = torch.where(std > 0, advantages / (std + eps), 0)
    return _on_every_step(advantages, rollout)


@advantage("rloo")
@torch.no_grad()
def rloo(rollout: Rollout, *, all_reduce: AllReduce | None = None) -> Advantages:
    """score - mean score of the *other* rows of the group, on every step. Needs `groups`.

    A group of one, and one whose scores are equal, gives exactly 0.
    """
    groups = _groups(rollout, "rloo", all_reduce)
    size = groups.size
    return _on_every_step(groups.centred * size / (size - 1).clamp(min=1), rollout)


@advantage("reinforce++")
@torch.no_grad()
def reinforce_plus_plus(
    rollout: Rollout, *, gamma: float = 1.0, all_reduce: AllReduce | None = None
) -> Advantages:
    """Discounted sum of the rewards from each step on, whitened over all ranks (collective)."""
    check_number("gamma", gamma, 0.0, 1.0)
    sums = whiten(_reward_to_go(rollout, gamma), rollout.mask, all_reduce=all_reduce)
    return Advantages(_as_rewards(sums, rollout), None)


@advantage("reinforce++-baseline")
@torch.no_grad()
def reinforce_plus_plus_baseline(
    rollout: Rollout, *, all_reduce: AllReduce | None = None
) -> Advantages:
    """score - mean of the group on every step, whitened over all ranks (collective).

    Needs `groups`. Where the scores of a group are equal its rows have 0 before the whitening.
    """
    centred = _groups(rollout, "reinforce++-baseline", all_reduce).centred[:, None]
    white = whiten(centred.expand(rollout.mask.shape), rollout.mask, all_reduce=all_reduce)
    return Advantages(_as_rewards(white, rollout), None)


@advantage("remax")
@torch.no_grad()
def remax(rollout: Rollout) -> Advantages:
    """Sum of the rewards from each step on, less the score of the greedy response.

    Needs `baselines`.
    """
    baselines = rollout.need("baselines", "remax").double()[:, None]
    advantages = torch.where(rollout.mask, _reward_to_go(rollout, 1.0) - baselines, 0)
    return Advantages(_as_rewards(advantages, rollout), None)


def _bootstrap(rollout: Rollout) -> torch.Tensor:
    """float64 [B]: the value of what comes after the last step."""
    if rollout.truncated is None:
        return rollout.mask.new_zeros(rollout.mask.shape[0], dtype=torch.float64)
    last_values = rollout.need("last_values", "gae with truncated rows").double()
    return torch.where(rollout.truncated, last_values, 0)


def _backward(
    rollout: Rollout, values: torch.Tensor, next_value: torch.Tensor, gamma: float, lam: float
) -> torch.Tensor:
    """float64 [B, T]: delta = r + gamma v' - v, summed with gamma lam from the last step on."""
    rewards = torch.where(rollout.mask, rollout.rewards.double(), 0)
    advantages = torch.zeros_like(rewards)
    next_advantage = torch.zeros_like(next_value)
    for token in reversed(range(rewards.shape[1])):
        step = rollout.mask[:, token]
        delta = rewards[:, token] + gamma * next_value - values[:, token]
        next_advantage = torch.where(step, delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(step, values[:, token], next_value)
        advantages[:, token] = torch.where(step, next_advantage, 0)
    return advantages


def _reward_to_go(rollout: Rollout, gamma: float) -> torch.Tensor:
    """float64 [B, T]: what `_backward` gives for a critic that expects nothing."""
    nothing = torch.zeros_like(rollout.rewards, dtype=torch.float64)
    return _backward(rollout, nothing, nothing.sum(1), gamma, 1.0)


def _groups(rollout: Rollout, algorithm: str, all_reduce: AllReduce | None) -> Groups:
    scores = torch.where(rollout.mask, rollout.rewards.double(), 0).sum(1)
    return Groups.of(
        scores,
        rollout.need("groups", algorithm),
        rollout.mask.any(1),
        num_groups=rollout.num_groups,
        all_reduce=all_reduce,
    )


def _on_every_step(rows: torch.Tensor, rollout: Rollout) -> Advantages:
    return Advantages(_as_rewards(torch.where(rollout.mask, rows[:, None], 0), rollout), None)


def _as_rewards(values: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    return values.to(widen(rollout.rewards).dtype)
