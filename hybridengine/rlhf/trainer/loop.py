"""loop: a run from its first step to its last."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hybridengine.rlhf.algorithms import KLController, kl_controller
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.logging import Sinks
from hybridengine.rlhf.trainer.batches import Batches, Made
from hybridengine.rlhf.trainer.changes import flat
from hybridengine.rlhf.trainer.checkpoints import Checkpoints, say_if_it_fails
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.evaluation import HeldOut, evaluated
from hybridengine.rlhf.trainer.record import Record
from hybridengine.rlhf.trainer.source import Source
from hybridengine.rlhf.trainer.step import Steps

# Kept of a time limit for what comes after the last step: evaluation, checkpoint, picture.
_CLOSING_S = 8.0
# Of the KL's controller: a field, and the key that it begins with.
_KEY_OF = {
    "coef": "algorithm.kl_coef",
    "target": "algorithm.kl.target",
    "horizon": "algorithm.kl.horizon",
}


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
    """Runs steps until the number of steps or the time is used up. `record` has what was done, also
    before a checkpoint."""

    def __init__(
        self,
        config: Config,
        steps: Steps,
        source: Source,
        checkpoints: Checkpoints,
        *,
        held_out: Sequence[HeldOut] = (),
        began: float,
    ) -> None:
        """`held_out`: what evaluations are of. `began`: time.monotonic() at the start of the run,
        from which its time limit counts."""
        self.config, self.record = config, Record()
        self._steps, self._source = steps, source
        self._checkpoints, self.held_out, self._began = checkpoints, held_out, began
        self._batches = Batches(source, steps)
        self._kl = make_controller(config)

    @property
    def history(self) -> list[dict[str, float]]:
        """The metrics of each step from the first on."""
        return self.record.history

    @property
    def step(self) -> int:
        """The last that was done."""
        return self.record.step

    @property
    def _ahead(self) -> bool:
        """Whether batches are made while the step before trains."""
        return self.config.trainer.staleness > 0

    @property
    def seconds(self) -> float:
        """What the run took so far, all parts together."""
        return self.record.seconds + time.monotonic() - self._began

    def restore(self) -> None:
        """Goes on from the newest checkpoint."""
        state = self._checkpoints.restore()
        self.record = Record(**state["record"])
        self._source.load_state_dict(state["source"])
        self._kl = resumed_controller(self.config, state["kl"], state["config"])

    def run(self, sinks: Sinks) -> Ending:
        """All steps that are left, with evaluations on the way and behind the last. Each is logged
        to `sinks` as it ends. Returns why there are no more."""
        trainer = self.config.trainer
        limit, first = trainer.steps, self.step
        assert limit is not None, "the number of steps is set before"
        if trainer.eval_before and first == 0:
            before = self.evaluate()
            if before:
                sinks.log(0, before)
        while self.step < limit and (self.step == first or self._time_left()):
            self.history.append(self._one_step(self.step + 1))
            if self.step == limit or _is_due(trainer.eval_interval, self.step):
                self.history[-1] |= self.evaluate()
            sinks.log(self.step, self.history[-1])
            if _is_due(trainer.save_interval, self.step):
                say_if_it_fails(self.save)
        if self.step < limit:
            self._evaluate_last(sinks)
        if self._ahead:
            self.catch_up()
        return Ending(self.step, limit, trainer.time_limit_s if self.step < limit else None)

    def save(self) -> None:
        """Throws RunError where it cannot be written."""
        state = {
            "config": flat(self.config),
            "record": asdict(replace(self.record, seconds=self.seconds)),
            "source": self._batches.state_dict(),
            "kl": _fields(self._kl),
        }
        self._checkpoints.save(self.step, state)

    def evaluate(self) -> dict[str, float]:
        """Of the sets that are held out, by the newest weights; nothing where there are none."""
        if not self.held_out:
            return {}
        self.catch_up()
        found: dict[str, float] = {}
        for each in self.held_out:
            found |= evaluated(self._steps, each)
        return found

    def catch_up(self) -> None:
        """The rollout is at rest then, and has the weights of the last step."""
        self._batches.settle()
        if self._steps.roles.rollout is not None and self._steps.version != self.step:
            self._steps.sync(self.step, Clock())

    def _evaluate_last(self, sinks: Sinks) -> None:
        """Where a time limit ended the run behind a step that was not."""
        if not any(name.startswith("eval/") for name in self.history[-1]):
            last = self.evaluate()
            self.history[-1] |= last
            if last:
                sinks.log(self.step, last)

    def _one_step(self, step: int) -> dict[str, float]:
        clock = Clock()
        made = self._batches.take(clock)
        metrics = made.metrics
        if self._ahead:
            if self._steps.version != step - 1:
                metrics |= self._steps.sync(step - 1, clock)
            if step != self.config.trainer.steps:
                self._batches.make_next()
        if len(made.scored.rows):
            metrics |= self._learn(made, step, clock)
        metrics |= made.clock.stages() | clock.metrics()
        if made.clock.seconds("rollout") > 0:  # offline nothing is generated
            metrics["rollout/staleness"] = float(step - 1 - made.version)
            tokens = metrics["rollout/tokens"]
            metrics["time/tokens_per_second"] = tokens / made.clock.seconds("rollout")
        return metrics

    def _learn(self, made: Made, step: int, clock: Clock) -> dict[str, float]:
        """Updates the weights and moves them to the rollout, unless that generates."""
        scored = made.scored
        sent = self._steps.learn(
            scored,
            step=step,
            kl=self._kl,
            baselines=made.baselines,
            train_actor=step > self.config.critic.warmup_steps,
        )
        online = self._steps.roles.rollout is not None and not self._ahead
        syncing = self._steps.send_sync(step) if online else []
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
    kind, values = config.algorithm.kl.controller, flat(config)
    options = {name: values[_KEY_OF[name]] for name in kl_controller.options(kind)}
    return kl_controller.get(kind)(**options)


def resumed_controller(
    config: Config, saved: Mapping[str, Any], then: Mapping[str, Any]
) -> KLController:
    """The controller that had the fields `saved` under the config `then`, with what the config says
    otherwise now."""
    now = flat(config)
    if now["algorithm.kl.controller"] != then["algorithm.kl.controller"]:
        return make_controller(config)
    changed = {name: now[key] for name, key in _KEY_OF.items() if now[key] != then[key]}
    kept = {name: changed.get(name, value) for name, value in saved.items()}
    return kl_controller.get(config.algorithm.kl.controller)(**kept)


def _is_due(interval: int, step: int) -> bool:
    return interval > 0 and step % interval == 0


def _fields(controller: KLController) -> dict[str, Any]:
    fields: dict[str, Any] = asdict(controller)  # type: ignore[call-overload]
    return fields
