"""fit: a reward model from its first step to its last."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import PromptLoader, digest_of
from hybridengine.rlhf.logging import Sinks, open_sinks
from hybridengine.rlhf.trainer import artifacts
from hybridengine.rlhf.trainer.changes import flat
from hybridengine.rlhf.trainer.checkpoints import Checkpoints, say_if_it_fails
from hybridengine.rlhf.trainer.export import export
from hybridengine.rlhf.trainer.failure import finish
from hybridengine.rlhf.trainer.loop import Ending
from hybridengine.rlhf.trainer.pairs import Pairs, measured, shards
from hybridengine.rlhf.trainer.record import Record
from hybridengine.rlhf.workers import WorkerGroup

_LEAST_EVALUATIONS = 5


class Fit:
    """The steps of a run. `record` has what was done, also before a checkpoint."""

    def __init__(
        self, config: Config, group: WorkerGroup, pairs: Pairs, folder: Path, began: float
    ) -> None:
        """`began`: time.monotonic() at the start of the run, from which its time limit counts."""
        self.config, self.group, self.folder, self.began = config, group, folder, began
        self.record = Record()
        self.pairs = pairs
        self._size = config.data.train_batch_size
        digest = digest_of(
            ids for each in pairs.train for ids in (each.chosen_ids, each.rejected_ids)
        )
        self._loader = PromptLoader(
            len(pairs.train), self._size, config.seed, config.data.shuffle, digest
        )
        keep = config.trainer.keep_checkpoints
        self._checkpoints = Checkpoints(folder, {"reward_model": group}, keep)

    @property
    def seconds(self) -> float:
        """What the run took so far, all parts together."""
        return self.record.seconds + time.monotonic() - self.began

    def restore(self) -> None:
        """Goes on from the newest checkpoint."""
        state = self._checkpoints.restore()
        self.record = Record(**state["record"])
        self._loader.load_state_dict(state["loader"])

    def save(self) -> None:
        """Throws RunError where it cannot be written."""
        state = {
            "config": flat(self.config),
            "record": asdict(replace(self.record, seconds=self.seconds)),
            "loader": self._loader.state_dict(),
        }
        self._checkpoints.save(self.record.step, state)

    def run(self) -> Ending:
        """All steps that are left, with evaluations on the way and behind the last. Returns why
        there are no more."""
        limit, first = self.config.trainer.steps, self.record.step
        assert limit is not None, "the number of steps is set before"
        sinks = open_sinks(self.config, self.folder, first)
        try:
            if self.config.trainer.eval_before and first == 0:
                before = self.evaluate()
                if before:
                    sinks.log(0, before)
            while self.record.step < limit and (self.record.step == first or self._time_left()):
                self._log_step(sinks, limit)
            self._evaluate_last(sinks)
        finally:
            sinks.close()
        early = self.record.step < limit
        return Ending(self.record.step, limit, self.config.trainer.time_limit_s if early else None)

    def _log_step(self, sinks: Sinks, limit: int) -> None:
        """One step with what is due behind it."""
        record, interval = self.record, self.config.trainer.save_interval
        record.history.append(self._one_step())
        if self._evaluates(limit):
            record.history[-1] |= self.evaluate()
        sinks.log(record.step, record.history[-1])
        if interval and record.step % interval == 0:
            say_if_it_fails(self.save)

    def evaluate(self) -> dict[str, float]:
        """Of the pairs that are held out; nothing where there are none."""
        return measured(self.group, self.pairs.held_out, self._size)

    def _one_step(self) -> dict[str, float]:
        began = time.perf_counter()
        chosen = [self.pairs.train[index] for index in self._loader.next_batch()]
        found = self.group.update(shards(chosen, self.group.num_places))[0]
        metrics = {f"reward_model/{name}": value for name, value in found.items()}
        return {**metrics, "time/step": time.perf_counter() - began}

    def _evaluates(self, steps: int) -> bool:
        interval = self.config.trainer.eval_interval
        often = min(interval, max(1, steps // _LEAST_EVALUATIONS))
        step = self.record.step
        return step == steps or (often > 0 and step % often == 0)

    def _evaluate_last(self, sinks: Sinks) -> None:
        """Where a time limit ended the run behind a step that was not."""
        if "eval/loss" not in self.record.history[-1]:
            last = self.evaluate()
            self.record.history[-1] |= last
            if last:
                sinks.log(self.record.step, last)

    def _time_left(self) -> bool:
        limit = self.config.trainer.time_limit_s
        return limit is None or time.monotonic() - self.began < limit


def fitted(config: Config, fit: Fit) -> tuple[artifacts.FitSummary, Ending]:
    """Fits, and writes what the run leaves; its summary, and why it ended."""
    if config.run.resume:
        fit.restore()
    ending = fit.run()
    held_out, folder, history = len(fit.pairs.held_out), fit.folder, fit.record.history
    summary = artifacts.summarize_fit(history, held_out, fit.seconds)
    parts: list[Callable[[], object]] = [
        lambda: artifacts.plot_fit(folder / "accuracy.png", history, folder.name)
    ]
    if config.trainer.save_interval:
        parts.append(fit.save)
    parts.append(lambda: export(fit.group, folder, fit.save))
    parts.append(lambda: artifacts.write_summary(folder, summary))
    finish(folder, parts)
    return summary, ending
