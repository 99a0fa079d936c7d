"""Each family of algorithms learns which of four tokens pays, from its own samples."""

import pytest
import torch

from hybridengine.rlhf.algorithms import (
    Rollout,
    advantage,
    aggregation,
    global_counts,
    group_filter,
    kl_estimator,
    policy_loss,
    token_log_probs,
    token_rewards,
    value_loss,
)

pytestmark = pytest.mark.python

_PAY = torch.tensor([0.0, 0.1, 0.0, 1.0])
_ROWS = 32


class _Bandit:
    """One state: the policy is four logits, the critic one number."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(7)
        self.logits = torch.zeros(4, requires_grad=True)
        self.value = torch.zeros(1, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.logits, self.value], lr=0.1)
        self.mask = torch.ones(_ROWS, 1, dtype=torch.bool)
        self.reference = torch.full((_ROWS, 1), 0.25).log()

    def mean_reward(self) -> float:
        return float((self.logits.detach().softmax(-1) * _PAY).sum())

    def log_probs(self, tokens: torch.Tensor) -> torch.Tensor:
        return token_log_probs(self.logits.expand(_ROWS, 1, 4), tokens)

    def step(self, estimator: str, loss: str, mode: str, groups: str) -> None:
        probs = self.logits.detach().softmax(-1)
        tokens = probs.multinomial(_ROWS, replacement=True, generator=self.generator)[:, None]
        scores = _PAY[tokens[:, 0]]
        prompts = torch.arange(_ROWS) // 8
        kept = self.mask & group_filter.get(groups)(scores, prompts)[:, None]
        old = self.log_probs(tokens).detach()
        values = self.value.detach().expand(_ROWS, 1)
        kl = kl_estimator.get("k1")(old, self.reference, kept)
        rollout = Rollout(
            token_rewards(scores, kept, kl=kl, kl_coef=0.01),
            kept,
            groups=prompts,
            values=values,
            baselines=_PAY[probs.argmax()].expand(_ROWS),
        )
        result = advantage.get(estimator)(rollout)
        counts = global_counts(kept)
        for _ in range(2):
            new = self.log_probs(tokens)
            terms = policy_loss.get(loss)(new, old, result.advantages, kept)
            total = aggregation.get(mode)(terms.losses, kept, counts)
            if result.returns is not None:
                now = self.value.expand(_ROWS, 1)
                critic = value_loss.get("clip")(now, values, result.returns, kept)
                total = total + aggregation.get(mode)(critic.losses, kept, counts)
            self.optimizer.zero_grad()
            total.backward()
            self.optimizer.step()


@pytest.mark.parametrize(
    ("estimator", "loss", "mode", "groups"),
    [
        ("gae", "clip", "token-mean", "none"),
        ("grpo", "clip", "seq-mean-token-mean", "none"),
        ("grpo", "clip", "token-mean", "dapo"),
        ("grpo", "gspo", "seq-mean-token-mean", "none"),
        ("grpo", "cispo", "token-mean", "none"),
        ("rloo", "clip", "seq-mean-token-sum", "none"),
        ("reinforce++", "clip", "token-mean", "none"),
        ("reinforce++-baseline", "clip", "token-mean", "none"),
        ("remax", "clip", "seq-mean-token-sum", "none"),
    ],
)
def test_the_best_token_is_found(estimator: str, loss: str, mode: str, groups: str) -> None:
    bandit = _Bandit()
    assert bandit.mean_reward() == pytest.approx(0.275)
    for _ in range(40):
        bandit.step(estimator, loss, mode, groups)
    assert bandit.mean_reward() > 0.8
