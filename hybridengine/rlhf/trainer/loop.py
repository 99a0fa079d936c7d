"""loop: a run from its first step to its last."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hybridengine.rlhf.algorithms import KLController, kl_controller
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import Encoded
from hybridengine.rlhf.logging import Sinks
from hybridengine.rlhf.trainer.checkpoints import Checkpoints, say_if_it_fails
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.offline import Offline
from hybridengine.rlhf.trainer.prompts import Prompts, as_prompts
from hybridengine.rlhf.trainer.scored import Scored
from hybridengine.rlhf.trainer.step import Steps

# Kept of a time limit for what comes after the last step: evaluation, checkpoint, picture.
_CLOSING_S = 8.0
# Serial numbers of evaluation prompts begin here, far from those of training.
_EVAL_SERIAL = 1 << 40


@dataclass(frozen=True)
class Ending:
    """Why a run ended that nothing went wrong in: its last step, counted over all its parts, the
    steps that it was to do, and the time limit where that came first."""

    step: int
    steps: int
    time_limit_s: float | None = None

    def __str__(self) -> str:
        """Nothing where all steps are done."""
        if self.time_limit_s is None:
            return ""
        return f"trainer.time_limit_s={self.time_limit_s:g} ended it before step {self.steps}"


class Loop:
    """Runs steps until the number of steps or the time is used up. `history` has the metrics of
    every step. `source` gives the rollouts: prompts to generate from, or responses of files."""

    def __init__(
        self,
        config: Config,
        steps: Steps,
        source: Prompts | Offline,
        checkpoints: Checkpoints,
        *,
        began: float,
    ) -> None:
        """`began`: time.monotonic() at the start of the run, from which its time limit counts."""
        self.config, self.history = config, list[dict[str, float]]()
        self._steps, self._source = steps, source
        self._checkpoints, self._began = checkpoints, began
        self._kl = make_controller(config)
        self._step = 0

    @property
    def step(self) -> int:
        """The last that was done."""
        return self._step

    def restore(self) -> None:
        """Goes on from the newest checkpoint."""
        state = self._checkpoints.restore()
        self._step = int(state["step"])
        self._source.load_state_dict(state["source"])
        self._kl = type(self._kl)(**state["kl"])

    def run(self, sinks: Sinks) -> Ending:
        """All steps that are left, and an evaluation behind the last. Each is logged to `sinks` as
        it ends. Returns why there are no more."""
        trainer = self.config.trainer
        limit = trainer.steps
        assert limit is not None, "the number of steps is set before"
        if trainer.eval_before and self._step == 0:
            before = self.evaluate()
            if before:
                sinks.log(0, before)
        while self._step < limit and (not self.history or self._time_left()):
            self._step += 1
            metrics = self._one_step()
            if trainer.eval_interval and self._step % trainer.eval_interval == 0:
                metrics |= self.evaluate()
            self.history.append(metrics)
            sinks.log(self._step, metrics)
            if trainer.save_interval and self._step % trainer.save_interval == 0:
                say_if_it_fails(self.save)
        last = self.evaluate()
        if last:
            self.history[-1] |= last
            sinks.log(self._step, last)
        return Ending(self._step, limit, trainer.time_limit_s if self._step < limit else None)

    def save(self) -> None:
        """Throws RunError where it cannot be written."""
        state = {"source": self._source.state_dict(), "kl": _fields(self._kl)}
        self._checkpoints.save(self._step, state)

    def evaluate(self) -> dict[str, float]:
        """The likeliest responses to the evaluation prompts; nothing where there are none."""
        held_out = self._source.eval
        if not held_out:
            return {}
        scored = self._steps.respond(eval_prompts(held_out), Clock(), {"greedy": True})
        return {
            "eval/reward": sum(scored.task_scores) / len(scored.task_scores),
            "eval/errors": float(scored.errors),
        }

    def _one_step(self) -> dict[str, float]:
        clock = Clock()
        scored, metrics = self._source.rollouts(self._steps, clock)
        if len(scored.rows):
            metrics |= self._learn(scored, clock)
        metrics |= clock.metrics()
        if clock.seconds("rollout") > 0:  # offline nothing is generated
            tokens = metrics["rollout/tokens"]
            metrics["time/tokens_per_second"] = tokens / clock.seconds("rollout")
        return metrics

    def _learn(self, scored: Scored, clock: Clock) -> dict[str, float]:
        """Updates the weights and moves them to the rollout."""
        sent = self._steps.learn(
            scored,
            step=self._step,
            kl=self._kl,
            baselines=self._source.baselines(self._steps, scored, clock),
            train_actor=self._step > self.config.critic.warmup_steps,
        )
        online = self._steps.roles.rollout is not None
        syncing = self._steps.send_sync(self._step) if online else []
        metrics = sent.results(clock)
        metrics["actor/kl_coef"] = self._kl.coef
        if "actor/sequence_kl" in metrics:
            self._kl = self._kl.updated(metrics["actor/sequence_kl"], len(scored.rows))
        return metrics | (self._steps.synced(syncing, clock) if online else {})

    def _time_left(self) -> bool:
        limit = self.config.trainer.time_limit_s
        if limit is None:
            return True
        longest = max((metrics["time/step"] for metrics in self.history[-5:]), default=0.0)
        return time.monotonic() - self._began + longest + _CLOSING_S < limit


def make_controller(config: Config) -> KLController:
    """The controller of the KL's weight that the config asks for."""
    algorithm = config.algorithm
    known = {
        "coef": algorithm.kl_coef,
        "target": algorithm.kl.target,
        "horizon": algorithm.kl.horizon,
    }
    names = kl_controller.options(algorithm.kl.controller)
    return kl_controller.get(algorithm.kl.controller)(**{name: known[name] for name in names})


def eval_prompts(held_out: Sequence[Encoded]) -> Batch:
    serials = range(_EVAL_SERIAL, _EVAL_SERIAL + len(held_out))
    return as_prompts(held_out, serials, 1)


def _fields(controller: KLController) -> dict[str, Any]:
    fields: dict[str, Any] = asdict(controller)  # type: ignore[call-overload]
    return fields
