"""step: from prompts to updated weights, once.

    prompts -> rollout.generate -> reward.score -> [group filter] -> actor.prepare (old log-probs)
            -> reference.log_probs, critic.values -> actor.advantages
            -> critic.update, actor.update -> transfer of the weights to the rollout

The controller's part: who gets which rows, in which order. Rows themselves go from worker to
worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.algorithms import group_filter
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.learn import Learner
from hybridengine.rlhf.trainer.partition import spread, spread_groups
from hybridengine.rlhf.trainer.placement import Roles
from hybridengine.rlhf.trainer.reward_failures import RewardFailures
from hybridengine.rlhf.trainer.rows import Rows
from hybridengine.rlhf.trainer.scored import Scored
from hybridengine.rlhf.workers import Pending, Reference


class Steps:
    """The stages of a step over the groups of a run."""

    def __init__(self, config: Config, roles: Roles) -> None:
        self.config, self.roles = config, roles
        self.learn = Learner(config, roles).learn
        self.version = -1  # of the weights that the rollout has, or will have when it is asked
        self._failures = RewardFailures()
        self._filter = group_filter.get(config.algorithm.group_filter)

    def respond(
        self,
        prompts: Batch,
        clock: Clock,
        options: dict[str, Any] | None = None,
        *,
        keep: bool = False,
    ) -> Scored:
        """Generates responses to `prompts` and scores them; rows in the order of `prompts`.
        `keep`: they are what the run trains on, which trainer.save_rollouts writes."""
        rows, pieces = self._generate(prompts, clock, options)
        lengths = _by_row(pieces, rows, "lengths")
        hosts = _hosts_of(rows, self.roles.reward.num_places)
        scored = self.score(Rows.of(pieces, rows), lengths, clock, hosts, keep=keep)
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
        self,
        rows: Rows,
        lengths: list[int],
        clock: Clock,
        parts: list[list[int]] | None = None,
        *,
        keep: bool = False,
    ) -> dict[str, Any]:
        """Fields of Scored for `rows`: those with scores, and the scores. `parts` says which rows
        go to which place of the reward's. Throws UsageError where rewards failed for all."""
        parts = spread(lengths, self.roles.reward.num_places) if parts is None else parts
        shards: list[Any] = [rows.picks(part) for part in parts]
        judged: list[Any] = [None] * len(parts)
        model = self.roles.reward_model
        if model is not None:
            shares = spread(lengths, model.num_places)
            found = model.score([rows.picks(share) for share in shares])
            clock.busy("reward", _seconds(found))
            columns = Rows.of(found, shares)
            judged = [columns.picks(part) for part in parts]
        pieces = self.roles.reward.score(list(zip(shards, judged, strict=True)), keep)
        clock.busy("reward", _seconds(pieces))
        errors = [error for piece in pieces for error in piece.summary["errors"]]
        _refuse_nothing_but_errors(errors, len(lengths))
        self._failures.tell(errors, len(lengths))
        names = dict.fromkeys(name for piece in pieces for name in piece.summary["parts"])
        return {
            "rows": Rows.of(pieces, parts),
            "scores": _by_row(pieces, parts, "scores"),
            "task_scores": _by_row(pieces, parts, "task_scores"),
            "parts": {name: _part_by_row(pieces, parts, name) for name in names},
            "errors": len(errors),
        }

    def informative(self, scored: Scored) -> Scored:
        """The groups that the filter keeps, by their task scores."""
        kept = self._filter(torch.tensor(scored.task_scores), torch.tensor(scored.groups))
        return scored.select(torch.nonzero(kept)[:, 0].tolist())

    def sync(self, version: int, clock: Clock) -> dict[str, float]:
        """Moves the actor's weights to the rollout; see send_sync."""
        return self.synced(self.send_sync(version), clock)

    def send_sync(self, version: int) -> list[Pending]:
        """Asks both ends to move the weights as they will be behind all that was sent before.
        `version`: the step that they are of, 0 before the first."""
        rollout, actor = self.roles.rollout, self.roles.actor
        assert rollout is not None
        self.version = version
        sending = [] if self.roles.colocated else [actor.send.remote()]
        return [*sending, rollout.sync.remote(version)]

    def synced(self, sent: Sequence[Pending], clock: Clock) -> dict[str, float]:
        """Waits for both ends; bytes of all ranks together."""
        found = [pending.result() for pending in sent][-1]
        clock.busy("reshard", [each["seconds"] for each in found])
        return {
            "reshard/received_bytes": sum(each["received_bytes"] for each in found),
            "reshard/bound_bytes": sum(each["bound_bytes"] for each in found),
            "reshard/memory_share": max(each["memory_share"] for each in found),
            "reshard/offloaded": max(each["offloaded"] for each in found),
        }

    def _generate(
        self, prompts: Batch, clock: Clock, options: dict[str, Any] | None, texts: bool = False
    ) -> tuple[list[list[int]], list[Reference]]:
        """By place of the rollout, the numbers of its rows, and the rows."""
        rollout = self.roles.rollout
        assert rollout is not None
        groups, lengths = prompts["group"].tolist(), prompts.lengths.tolist()
        parts = spread_groups(groups, lengths, rollout.num_places)
        pieces = rollout.generate([prompts.select(part) for part in parts], options, texts)
        clock.busy("rollout", _seconds(pieces))
        return parts, pieces


def _refuse_nothing_but_errors(errors: Sequence[str], rows: int) -> None:
    """Rewards that fail here and there cost their samples; where all fail, every number behind
    them would be made of zeros that nothing earned."""
    if rows and len(errors) == rows:
        raise UsageError(
            f"rewards failed for all {rows} samples, the first: {errors[0].rstrip('.')}. Mend the "
            "reward or its data: there is nothing to learn from."
        )


def _hosts_of(rows: list[list[int]], places: int) -> list[list[int]] | None:
    """Rows are scored where they were made, if as many places score as generated."""
    return rows if len(rows) == places and all(rows) else None


def _seconds(pieces: Sequence[Reference]) -> list[float]:
    return [piece.summary["seconds"] for piece in pieces]


def _by_row(pieces: Sequence[Reference], parts: list[list[int]], name: str) -> list[Any]:
    """The column `name` of the summaries, in the order of all rows."""
    return _ordered([piece.summary[name] for piece in pieces], parts)


def _part_by_row(
    pieces: Sequence[Reference], parts: list[list[int]], name: str
) -> list[float | None]:
    """None for the rows of a rank on which no sample had such a number."""
    return _ordered(
        [
            piece.summary["parts"].get(name, [None] * len(part))
            for piece, part in zip(pieces, parts, strict=True)
        ],
        parts,
    )


def _ordered(columns: Sequence[Sequence[Any]], parts: list[list[int]]) -> list[Any]:
    values: dict[int, Any] = {}
    for column, part in zip(columns, parts, strict=True):
        values.update(zip(part, column, strict=True))
    return [values[row] for row in range(len(values))]
