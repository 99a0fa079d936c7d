"""learn: from scored rows to updated weights.

The stages are sent one after the other without waiting: each takes references to what the one
before will have made, and ranks run them in the order in which they were sent. Answers are then
read in the same order, so that a failure is seen at the stage where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybridengine.rlhf.algorithms import KLController
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.partition import partition, spread
from hybridengine.rlhf.trainer.placement import Roles
from hybridengine.rlhf.trainer.rows import Rows
from hybridengine.rlhf.trainer.scored import Scored
from hybridengine.rlhf.workers import Pending, Reference

# Seeds of steps are this far apart, so that runs of neighbouring seeds share no order.
_SEED_STRIDE = 1_000_003
# What ranks tell of an update for its speed.
_WORK = ("seconds", "peak", "flops", "processed")


class Learner:
    """The part of a step behind the scores."""

    def __init__(self, config: Config, roles: Roles) -> None:
        self._config, self._roles = config, roles

    def learn(
        self,
        scored: Scored,
        *,
        step: int,
        kl: KLController,
        baselines: list[float] | None = None,
        train_actor: bool = True,
    ) -> Sent:
        """Prepares the rows, computes advantages, and updates critic and actor. Returns at once."""
        roles, algorithm = self._roles, self._config.algorithm
        if roles.rollout is not None and roles.colocated and self._config.rollout.sleep == "drop":
            roles.rollout.sleep()
        cut = partition(
            scored.groups,
            scored.lengths,
            num_places=roles.actor.num_places,
            mini_batch_groups=self._config.actor.ppo_mini_batch_size,
            seed=self._config.seed * _SEED_STRIDE + step,
        )
        columns: dict[str, list[Any]] = {"mini_batch": cut.mini_batch, "group": cut.group}
        if baselines is not None:
            columns["baselines"] = baselines
        shares = self._critic_parts(cut.places, scored.lengths)
        sent = Sent()
        known = self._measured(sent, scored, cut.places, shares, columns)
        by_loss = algorithm.kl.where == "loss"
        coef = 0.0 if by_loss else kl.coef
        pending = roles.actor.advantages.remote(known, coef, cut.num_groups)
        pieces = sent.references("advantages", pending)
        if roles.critic is not None:
            handed = handed_over(pieces, cut.places, shares)
            sent.update("critic", roles.critic.update.remote(handed))
        if train_actor:
            sent.update("actor", roles.actor.update.remote(pieces, kl.coef if by_loss else 0.0))
        return sent

    def _measured(
        self,
        sent: Sent,
        scored: Scored,
        parts: list[list[int]],
        shares: list[list[int]],
        columns: dict[str, list[Any]],
    ) -> list[Any]:
        """By place of the actor, what advantages() takes: rows with old log-probs, and columns of
        the reference and the critic."""
        roles = self._roles
        shards = [
            (scored.rows.picks(part), {name: [c[i] for i in part] for name, c in columns.items()})
            for part in parts
        ]
        prepared = sent.references("log_probs", roles.actor.prepare.remote(shards))
        known: list[Sequence[Any]] = [prepared]
        if roles.reference is not None:
            known.append(sent.references("log_probs", roles.reference.log_probs.remote(prepared)))
        if roles.critic is not None:
            handed = handed_over(prepared, parts, shares)
            found = sent.references("values", roles.critic.values.remote(handed))
            known.append(handed_over(found, shares, parts))
        return list(zip(*known, strict=True))

    def _critic_parts(self, parts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        """The rows of the critic's places: the actor's parts where they are the same ranks."""
        critic = self._roles.critic
        if critic is None or critic.pool is self._roles.actor.pool:
            return parts
        return spread(lengths, critic.num_places)


@dataclass(frozen=True)
class _Stage:
    name: str
    role: str  # whose metrics it gives; empty for a stage that returns references
    pending: Pending


class Sent:
    """The calls of a step, in the order in which they were sent."""

    def __init__(self) -> None:
        self._stages: list[_Stage] = []

    def references(self, name: str, pending: Pending) -> list[Reference]:
        """What the call will have made, by rank."""
        self._stages.append(_Stage(name, "", pending))
        return pending.references

    def update(self, role: str, pending: Pending) -> None:
        self._stages.append(_Stage("update", role, pending))

    def results(self, clock: Clock) -> dict[str, float]:
        """Waits for all; the metrics of critic and actor."""
        metrics: dict[str, float] = {}
        for stage in self._stages:
            found = stage.pending.result()
            if stage.role:
                facts = found[0]
                known = {**{n: v for n, v in facts.items() if n not in _WORK}, **_speed(found)}
                metrics |= {f"{stage.role}/{name}": value for name, value in known.items()}
                clock.busy(stage.name, [each["seconds"] for each in found])
            else:
                means = found[0].summary.get("means", {})
                metrics |= {f"actor/{name}": value for name, value in means.items()}
                clock.busy(stage.name, [piece.summary["seconds"] for piece in found])
        return metrics


def _speed(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of an update, from what its ranks answer."""
    seconds = max(each["seconds"] for each in found)
    possible = seconds * sum(each["peak"] for each in found)
    return {
        "tokens_per_second": found[0]["processed"] / seconds,
        "flops_share": found[0]["flops"] / possible,
    }


def handed_over(
    pieces: list[Reference], parts: list[list[int]], wanted: list[list[int]]
) -> list[Any]:
    """Rows that lie in `parts`, for ranks that take them in `wanted`."""
    if parts == wanted:
        return list(pieces)
    rows = Rows.of(pieces, parts)
    return [rows.picks(part) for part in wanted]
