"""metrics: every number that a run logs, with its unit and meaning.

docs/metrics.md is made from this table, and tests look up what runs log in it. A metric that is
new needs a row here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A part of the name in angle brackets stands for any. `when`: always, if empty."""

    name: str
    unit: str
    meaning: str
    when: str = ""

    def names(self, logged: str) -> bool:
        """Whether `logged` is the name of such a number."""
        parts = re.split(r"<[^>]+>", self.name)
        return re.fullmatch("[^/]+".join(map(re.escape, parts)), logged) is not None


_WITH_CRITIC = "with a critic"
_MEASURED = "where the KL to the reference is measured"
_ONLINE = "online"
_HELD_OUT = "where pairs are held out"

_REWARD = (
    Metric("reward/mean", "score", "mean of the task's scores over all responses"),
    Metric("reward/std", "score", "their standard deviation, over n"),
    Metric("reward/min", "score", "the least of them"),
    Metric("reward/max", "score", "the largest"),
    Metric("reward/shaped", "score", "the same with the penalty for overlong responses"),
    Metric("reward/errors", "count", "samples that a [reward](rewards.md) failed on"),
    Metric(
        "environment/<count>",
        "count",
        "what an [environment](environments.md) counts, `turns` among them, and as `name_solved` "
        "the share of episodes that have some and a score above a half: mean over episodes",
        "where environments answer",
    ),
    Metric(
        "reward/<reward>",
        "score",
        "mean of one reward before its weight, over the samples that it did not fail on",
    ),
    Metric(
        "reward/<reward>/<part>",
        "as returned",
        "mean of another number that a reward returns, over the samples that it is returned for",
        "where the reward returns a dict",
    ),
)
# Of a held-out set: that without a name, and those of eval_sets.
_EVALUATION = (
    ("reward", "score", "mean score of the responses to held-out prompts; see `evaluation`"),
    ("reward/<source>", "score", "the same of one `data_source`, where there are several"),
    ("pass@<k>", "share", "chance that of k responses one passes: k = 1, 2, 4, ... up to n, and n"),
    ("length", "tokens", "mean length of a response"),
    ("truncated", "share", "responses that were cut at their largest length"),
    ("errors", "count", "responses that a reward failed on"),
)
_ROLLOUT = (
    Metric("rollout/tokens", "tokens", "all responses together"),
    Metric("rollout/length", "tokens", "mean length of a response"),
    Metric("rollout/length_std", "tokens", "standard deviation of lengths, over n"),
    Metric("rollout/length_min", "tokens", "the shortest response"),
    Metric("rollout/length_max", "tokens", "the longest"),
    Metric("rollout/truncated", "share", "responses that were cut at their largest length"),
    Metric("rollout/staleness", "steps", "that the weights which generated were behind", _ONLINE),
    Metric("rollout/rounds", "count", "draws until the batch was full", "with a group filter"),
    Metric("rollout/kept_groups", "count", "groups that the filter kept", "with a group filter"),
    Metric(
        "rollout/missing_groups",
        "count",
        "that lack to a full batch after `algorithm.max_filter_rounds` draws",
        "with a group filter",
    ),
)
_ACTOR = (
    Metric(
        "actor/loss",
        "loss",
        "what was minimized, KL and entropy terms included; mean over mini-batches",
    ),
    Metric("actor/policy_loss", "loss", "its part that follows from advantages, a token"),
    Metric("actor/advantage", "advantage", "mean over trainable tokens"),
    Metric("actor/return", "score", "mean over trainable tokens", _WITH_CRITIC),
    Metric(
        "actor/correction",
        "ratio",
        "mean weight of the correction for rollout log-probs",
        "with `algorithm.rollout_correction` or `trainer.staleness`",
    ),
    Metric(
        "actor/mismatch_mean", "nats", "mean distance of log-probs, trainer and rollout", _ONLINE
    ),
    Metric("actor/mismatch_max", "nats", "the largest such distance", _ONLINE),
    Metric("actor/mismatch_kl", "nats", "estimated KL from the rollout to the trainer", _ONLINE),
    Metric("actor/mismatch_ess", "share", "effective sample size of their ratios", _ONLINE),
    Metric("actor/ref_kl", "nats", "estimated KL to the reference, a token", _MEASURED),
    Metric("actor/sequence_kl", "nats", "the same, a response: what a controller sees", _MEASURED),
    Metric("actor/kl_coef", "weight", "of that KL in this step; a controller changes it"),
    Metric("actor/kl", "nats", "from the policy that sampled to the updated one, a token, k3"),
    Metric("actor/kl_k1", "nats", "the same by k1, the plain difference of log-probs"),
    Metric("actor/clip_share", "share", "tokens whose ratio the loss clipped"),
    Metric("actor/entropy", "nats", "mean over trainable tokens"),
    Metric(
        "actor/ratio_max_error",
        "ratio",
        "largest distance of the ratio from 1 before the first optimizer step; 0",
    ),
)
# Of whoever makes optimizer steps.
_STEPS = (
    ("grad_norm", "norm", "mean over optimizer steps, before clipping; finite ones"),
    ("lr", "rate", "learning rate of the last optimizer step"),
    ("skipped", "count", "optimizer steps left out, for a gradient that was not finite"),
    ("micro_batches", "count", "forward and backward passes of a rank"),
)
_BATCH = (
    ("tokens", "tokens", "trainable tokens of the batch"),
    ("updates", "count", "optimizer steps"),
    ("tokens_per_second", "tokens/s", "of all rows with their prompts, over all passes"),
    ("flops_share", "share", "model FLOPs of the update, of what its ranks can reach in that time"),
    ("stopped", "flag", "1 where `algorithm.kl.limit` ended the update early; a critic goes on"),
)
_CRITIC = (
    Metric("critic/loss", "loss", "mean over mini-batches of what was minimized"),
    Metric("critic/value_loss", "loss", "mean over trainable tokens"),
    Metric("critic/clip_share", "share", "tokens whose value the loss clipped"),
    Metric(
        "critic/explained_variance",
        "share",
        "of the returns by the values before the update; `null` where returns are equal",
    ),
)
_RESHARD = (
    Metric("reshard/received_bytes", "bytes", "what all ranks received", _ONLINE),
    Metric("reshard/bound_bytes", "bytes", "what they lacked: the least possible", _ONLINE),
    Metric(
        "reshard/memory_share",
        "share",
        "memory in use before, of the fullest rank; see `rollout.reshard_threshold`",
        _ONLINE,
    ),
    Metric(
        "reshard/offloaded",
        "flag",
        "1 where optimizers went to host memory to make room",
        _ONLINE,
    ),
)
_TIME = (
    Metric("time/step", "seconds", "the whole step"),
    Metric("time/controller", "seconds", "the part of it in which no role computed"),
    Metric("time/rollout", "seconds", "generating", _ONLINE),
    Metric(
        "time/waiting",
        "seconds",
        "for responses that are made beside the training; `time/rollout` is no part of the step",
        "with `trainer.staleness`",
    ),
    Metric("time/reward", "seconds", "scoring, by functions and models"),
    Metric("time/log_probs", "seconds", "old log-probs, and those of the reference"),
    Metric("time/values", "seconds", "values of the critic", _WITH_CRITIC),
    Metric("time/advantages", "seconds", "advantages over all ranks"),
    Metric("time/update", "seconds", "critic and actor"),
    Metric("time/reshard", "seconds", "moving the weights to the rollout", _ONLINE),
    Metric("time/tokens_per_second", "tokens/s", "generated, while generating", _ONLINE),
)
_REWARD_MODEL = (
    Metric("reward_model/loss", "loss", "of Bradley and Terry, the mean over pairs"),
    Metric("reward_model/accuracy", "share", "pairs in the right order; ties count half"),
    Metric("reward_model/pairs", "count", "pairs of the step"),
    Metric("eval/loss", "loss", "the same over the held-out pairs", _HELD_OUT),
    Metric("eval/accuracy", "share", "held-out pairs in the right order", _HELD_OUT),
)


def _of(role: str, rows: Iterable[tuple[str, str, str]]) -> tuple[Metric, ...]:
    return tuple(Metric(f"{role}/{name}", unit, meaning) for name, unit, meaning in rows)


SECTIONS: dict[str, tuple[Metric, ...]] = {
    "Reward": _REWARD,
    "Evaluation": _of("eval", _EVALUATION) + _of("eval/<set>", _EVALUATION),
    "Rollout": _ROLLOUT,
    "Actor": _ACTOR + _of("actor", _STEPS + _BATCH),
    "Critic": _CRITIC + _of("critic", _STEPS + _BATCH),
    "Reshard": _RESHARD,
    "Time": _TIME,
    "Reward model": _REWARD_MODEL + _of("reward_model", _STEPS),
}

_HEAD = """# Metrics

This page is generated: `hybridengine train --metrics-markdown > docs/metrics.md`.

What `metrics.jsonl`, TensorBoard and wandb get, under the same names; a line of the console has
those that fit. `metrics.jsonl` is one object a step, with `step` beside the numbers; what is not
finite is `null`. Means are over all ranks, KL is in nats, times are of the slowest rank of a call.
"""

_NOTES = {
    "Critic": "With `algorithm.advantage=gae`.",
    "Reward model": "Of `hybridengine train-reward`.",
}


def find_metric(logged: str) -> Metric | None:
    """The row of a name that a run logs. A row without placeholders goes before one with them."""
    rows = [metric for section in SECTIONS.values() for metric in section if metric.names(logged)]
    return min(rows, key=lambda metric: metric.name.count("<"), default=None)


def metrics_markdown() -> str:
    """The page docs/metrics.md."""
    parts = [_HEAD]
    for title, rows in SECTIONS.items():
        note = [_NOTES[title], ""] if title in _NOTES else []
        head = [f"## {title}", "", *note, "| metric | unit | meaning | when |", "|---|---|---|---|"]
        lines = [f"| `{m.name}` | {m.unit} | {m.meaning} | {m.when} |" for m in rows]
        parts.append("\n".join([*head, *lines]) + "\n")
    return "\n".join(parts)
