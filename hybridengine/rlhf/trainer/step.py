"""step: from prompts to updated weights, once.

    prompts -> rollout.generate -> reward.score -> [group filter] -> actor.prepare (old log-probs)
            -> reference.log_probs, critic.values -> actor.advantages
            -> critic.update, actor.update -> transfer of the weights to the rollout

The controller's part: who gets which rows, in which order. Rows themselves go from worker to
worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hybridengine.rlhf.algorithms import KLController, group_filter
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.partition import partition, spread
from hybridengine.rlhf.trainer.placement import Roles
from hybridengine.rlhf.trainer.rows import Rows
from hybridengine.rlhf.workers import Reference

# Seeds of steps are this far apart, so that runs of neighbouring seeds share no order.
_SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class Scored:
    """Responses with their scores: the rows, and by row what the controller decides by."""

    rows: Rows
    lengths: list[int]
    responses: list[int]  # tokens
    truncated: list[bool]
    groups: list[int]
    scores: list[float]
    task_scores: list[float]
    parts: dict[str, list[float]]
    errors: int

    def select(self, indices: Sequence[int]) -> Scored:
        def pick(column: list[Any]) -> list[Any]:
            return [column[index] for index in indices]

        return Scored(
            self.rows.select(indices),
            pick(self.lengths),
            pick(self.responses),
            pick(self.truncated),
            pick(self.groups),
            pick(self.scores),
            pick(self.task_scores),
            {name: pick(column) for name, column in self.parts.items()},
            self.errors,
        )

    @staticmethod
    def concat(parts: Sequence[Scored]) -> Scored:
        def join(name: str) -> list[Any]:
            return [value for part in parts for value in getattr(part, name)]

        return Scored(
            Rows.concat([part.rows for part in parts]),
            join("lengths"),
            join("responses"),
            join("truncated"),
            join("groups"),
            join("scores"),
            join("task_scores"),
            {name: [v for part in parts for v in part.parts[name]] for name in parts[0].parts},
            sum(part.errors for part in parts),
        )

    def metrics(self) -> dict[str, float]:
        count = max(len(self.scores), 1)
        return {
            "reward/mean": sum(self.task_scores) / count,
            "reward/shaped": sum(self.scores) / count,
            "reward/errors": float(self.errors),
            **{f"reward/{name}": sum(column) / count for name, column in self.parts.items()},
            "rollout/tokens": float(sum(self.responses)),
            "rollout/length": sum(self.responses) / count,
            "rollout/truncated": sum(self.truncated) / count,
        }


class Steps:
    """The stages of a step over the groups of a run."""

    def __init__(self, config: Config, roles: Roles) -> None:
        self.config, self.roles = config, roles
        self._filter = group_filter.get(config.algorithm.group_filter)

    def respond(
        self, prompts: Batch, clock: Clock, options: dict[str, Any] | None = None
    ) -> Scored:
        """Generates responses to `prompts` and scores them; rows in the order of `prompts`."""
        with clock.phase("rollout"):
            rows, pieces = self._generate(prompts, clock, options)
        lengths = _by_row(pieces, rows, "lengths")
        with clock.phase("reward"):
            scored = self.score(
                Rows.of(pieces, rows), lengths, clock, _hosts_of(rows, self._scorers)
            )
        return Scored(
            lengths=lengths,
            responses=_by_row(pieces, rows, "responses"),
            truncated=_by_row(pieces, rows, "truncated"),
            groups=_by_row(pieces, rows, "groups"),
            **scored,
        )

    def texts(self, prompts: Batch) -> list[str]:
        """The likeliest response to each prompt, as text."""
        rows, pieces = self._generate(prompts, Clock(), {"greedy": True}, texts=True)
        return _by_row(pieces, rows, "texts")

    def score(
        self, rows: Rows, lengths: list[int], clock: Clock, parts: list[list[int]] | None = None
    ) -> dict[str, Any]:
        """Fields of Scored for `rows`: those with scores, and the scores. `parts` says which rows
        go to which rank of the reward's pool."""
        parts = spread(lengths, self._scorers) if parts is None else parts
        shards: list[Any] = [rows.picks(part) for part in parts]
        judged: list[Any] = [None] * len(parts)
        model = self.roles.reward_model
        if model is not None:
            shares = spread(lengths, model.pool.num_ranks)
            found = model.score([rows.picks(share) for share in shares])
            clock.busy(_seconds(found))
            columns = Rows.of(found, shares)
            judged = [columns.picks(part) for part in parts]
        pieces = self.roles.reward.score(list(zip(shards, judged, strict=True)))
        clock.busy(_seconds(pieces))
        names = pieces[0].summary["parts"] or max((p.summary["parts"] for p in pieces), key=len)
        return {
            "rows": Rows.of(pieces, parts),
            "scores": _by_row(pieces, parts, "scores"),
            "task_scores": _by_row(pieces, parts, "task_scores"),
            "parts": {name: _part_by_row(pieces, parts, name) for name in names},
            "errors": sum(piece.summary["errors"] for piece in pieces),
        }

    def informative(self, scored: Scored) -> Scored:
        """The groups that the filter keeps, by their task scores."""
        kept = self._filter(torch.tensor(scored.task_scores), torch.tensor(scored.groups))
        return scored.select(torch.nonzero(kept)[:, 0].tolist())

    def learn(
        self,
        scored: Scored,
        clock: Clock,
        *,
        step: int,
        kl: KLController,
        baselines: list[float] | None = None,
        train_actor: bool = True,
    ) -> dict[str, float]:
        """Prepares the rows, computes advantages, and updates critic and actor."""
        config, roles = self.config, self.roles
        cut = partition(
            scored.groups,
            scored.lengths,
            num_ranks=roles.actor.pool.num_ranks,
            mini_batch_groups=config.actor.ppo_mini_batch_size,
            seed=config.seed * _SEED_STRIDE + step,
        )
        columns: dict[str, list[Any]] = {"mini_batch": cut.mini_batch}
        if baselines is not None:
            columns["baselines"] = baselines
        with clock.phase("log_probs"):
            known = self._measure(scored, cut.ranks, columns, clock)
        with clock.phase("advantages"):
            by_loss = config.algorithm.kl.where == "loss"
            pieces = roles.actor.advantages(known, 0.0 if by_loss else kl.coef)
            clock.busy(_seconds(pieces))
        metrics = {f"actor/{name}": value for name, value in pieces[0].summary["means"].items()}
        with clock.phase("update"):
            if roles.critic is not None:
                found = roles.critic.update(self._for_critic(pieces, cut.ranks, scored.lengths))
                metrics |= self._updated("critic", found, clock)
            if train_actor:
                found = roles.actor.update(pieces, kl.coef if by_loss else 0.0)
                metrics |= self._updated("actor", found, clock)
        return metrics

    def sync(self, clock: Clock) -> dict[str, float]:
        """Moves the actor's weights to the rollout; bytes of all ranks together."""
        rollout, actor = self.roles.rollout, self.roles.actor
        assert rollout is not None
        with clock.phase("reshard"):
            sending = None if self.roles.colocated else actor.send.remote()
            found = rollout.sync()
            if sending is not None:
                sending.result()
            clock.busy([each["seconds"] for each in found])
        return {
            "reshard/received_bytes": sum(each["received_bytes"] for each in found),
            "reshard/bound_bytes": sum(each["bound_bytes"] for each in found),
            "reshard/memory_share": max(each["memory_share"] for each in found),
            "reshard/offloaded": max(each["offloaded"] for each in found),
        }

    @property
    def _scorers(self) -> int:
        return self.roles.reward.pool.num_ranks

    def _generate(
        self, prompts: Batch, clock: Clock, options: dict[str, Any] | None, texts: bool = False
    ) -> tuple[list[list[int]], list[Reference]]:
        """By rank of the rollout, the numbers of its rows, and the rows."""
        rollout, tp = self.roles.rollout, self.config.rollout.tp_size
        assert rollout is not None
        engines = rollout.pool.num_ranks // tp
        parts = spread(prompts.lengths.tolist(), engines)
        shards = [prompts.select(parts[rank // tp]) for rank in range(rollout.pool.num_ranks)]
        pieces = rollout.generate(shards, options, texts)
        clock.busy(_seconds(pieces))
        # Of the ranks that share an engine only the first hands rows on.
        return [parts[rank // tp] if rank % tp == 0 else [] for rank in range(len(shards))], pieces

    def _measure(
        self,
        scored: Scored,
        parts: list[list[int]],
        columns: dict[str, list[Any]],
        clock: Clock,
    ) -> list[Any]:
        """By rank of the actor, what advantages() takes: rows with old log-probs, and columns of
        the reference and the critic."""
        roles = self.roles
        shards = [
            (scored.rows.picks(part), {name: _at(column, part) for name, column in columns.items()})
            for part in parts
        ]
        prepared = roles.actor.prepare(shards)
        clock.busy(_seconds(prepared))
        known = [prepared]
        if roles.reference is not None:
            known.append(roles.reference.log_probs(prepared))
            clock.busy(_seconds(known[-1]))
        if roles.critic is not None:
            shares = self._critic_parts(parts, scored.lengths)
            found = roles.critic.values(_handed(prepared, parts, shares))
            clock.busy(_seconds(found))
            known.append(_handed(found, shares, parts))
        return list(zip(*known, strict=True))

    def _for_critic(
        self, pieces: list[Reference], parts: list[list[int]], lengths: list[int]
    ) -> list[Any]:
        return _handed(pieces, parts, self._critic_parts(parts, lengths))

    def _critic_parts(self, parts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        """The actor's parts where the critic has the same ranks."""
        critic = self.roles.critic
        assert critic is not None
        if critic.pool is self.roles.actor.pool:
            return parts
        return spread(lengths, critic.pool.num_ranks)

    def _updated(self, role: str, found: list[dict[str, float]], clock: Clock) -> dict[str, float]:
        clock.busy([each["seconds"] for each in found])
        return {f"{role}/{name}": value for name, value in found[0].items() if name != "seconds"}


def _handed(pieces: list[Reference], parts: list[list[int]], wanted: list[list[int]]) -> list[Any]:
    """Rows that lie in `parts`, for ranks that take them in `wanted`."""
    if parts == wanted:
        return list(pieces)
    rows = Rows.of(pieces, parts)
    return [rows.picks(part) for part in wanted]


def _hosts_of(rows: list[list[int]], ranks: int) -> list[list[int]] | None:
    """Rows are scored where they were made, if as many ranks score as generated."""
    return rows if len(rows) == ranks and all(rows) else None


def _seconds(pieces: Sequence[Reference]) -> list[float]:
    return [piece.summary["seconds"] for piece in pieces]


def _at(column: list[Any], indices: Sequence[int]) -> list[Any]:
    return [column[index] for index in indices]


def _by_row(pieces: Sequence[Reference], parts: list[list[int]], name: str) -> list[Any]:
    """The column `name` of the summaries, in the order of all rows."""
    return _ordered([piece.summary[name] for piece in pieces], parts)


def _part_by_row(pieces: Sequence[Reference], parts: list[list[int]], name: str) -> list[float]:
    return _ordered(
        [
            piece.summary["parts"].get(name, [0.0] * len(part))
            for piece, part in zip(pieces, parts, strict=True)
        ],
        parts,
    )


def _ordered(columns: Sequence[Sequence[Any]], parts: list[list[int]]) -> list[Any]:
    values: dict[int, Any] = {}
    for column, part in zip(columns, parts, strict=True):
        values.update(zip(part, column, strict=True))
    return [values[row] for row in range(len(values))]
