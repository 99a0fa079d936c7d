"""fit: a reward model from its first step to its last."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import PromptLoader
from hybridengine.rlhf.logging import Sinks, open_sinks
from hybridengine.rlhf.trainer import artifacts
from hybridengine.rlhf.trainer.checkpoints import Checkpoints, say_if_it_fails
from hybridengine.rlhf.trainer.export import export
from hybridengine.rlhf.trainer.failure import finish
from hybridengine.rlhf.trainer.loop import Ending
from hybridengine.rlhf.trainer.pairs import Pairs, measured, shards
from hybridengine.rlhf.workers import WorkerGroup

_LEAST_EVALUATIONS = 5


class Fit:
    """The steps of a run. `history` has the metrics of all, also those before a checkpoint."""

    def __init__(
        self, config: Config, group: WorkerGroup, pairs: Pairs, folder: Path, began: float
    ) -> None:
        """`began`: time.monotonic() at the start of the run, from which its time limit counts."""
        self.config, self.group, self.folder, self.began = config, group, folder, began
        self.history: list[dict[str, float]] = []
        self.pairs = pairs
        self._size = config.data.train_batch_size
        self._loader = PromptLoader(
            len(pairs.train), self._size, config.seed, shuffle=config.data.shuffle
        )
        keep = config.trainer.keep_checkpoints
        self._checkpoints = Checkpoints(folder, {"reward_model": group}, keep)

    @property
    def step(self) -> int:
        """The last that was done."""
        return len(self.history)

    def restore(self) -> None:
        """Goes on from the newest checkpoint."""
        state = self._checkpoints.restore()
        self.history = state["history"]
        self._loader.load_state_dict(state["loader"])

    def save(self) -> None:
        """Throws RunError where it cannot be written."""
        state = {"loader": self._loader.state_dict(), "history": self.history}
        self._checkpoints.save(self.step, state)

    def run(self) -> Ending:
        """All steps that are left, with evaluations on the way and behind the last. Returns why
        there are no more."""
        trainer = self.config.trainer
        assert trainer.steps is not None, "the number of steps is set before"
        sinks = open_sinks(self.config, self.folder)
        try:
            if trainer.eval_before and self.step == 0:
                before = self.evaluate()
                if before:
                    sinks.log(0, before)
            while self.step < trainer.steps and (not self.history or self._time_left()):
                self.history.append(self._one_step())
                if self._evaluates(trainer.steps):
                    self.history[-1] |= self.evaluate()
                sinks.log(self.step, self.history[-1])
                if trainer.save_interval and self.step % trainer.save_interval == 0:
                    say_if_it_fails(self.save)
            self._evaluate_last(sinks)
        finally:
            sinks.close()
        early = self.step < trainer.steps
        return Ending(self.step, trainer.steps, trainer.time_limit_s if early else None)

    def evaluate(self) -> dict[str, float]:
        """Of the pairs that are held out; nothing where there are none."""
        return measured(self.group, self.pairs.held_out, self._size)

    def _one_step(self) -> dict[str, float]:
        began = time.perf_counter()
        chosen = [self.pairs.train[index] for index in self._loader.next_batch()]
        found = self.group.update(shards(chosen, self.group.pool.num_ranks))[0]
        metrics = {f"reward_model/{name}": value for name, value in found.items()}
        return {**metrics, "time/step": time.perf_counter() - began}

    def _evaluates(self, steps: int) -> bool:
        interval = self.config.trainer.eval_interval
        often = min(interval, max(1, steps // _LEAST_EVALUATIONS))
        return self.step == steps or (often > 0 and self.step % often == 0)

    def _evaluate_last(self, sinks: Sinks) -> None:
        """Where a time limit ended the run behind a step that was not."""
        if self.history and "eval/loss" not in self.history[-1]:
            last = self.evaluate()
            self.history[-1] |= last
            if last:
                sinks.log(self.step, last)

    def _time_left(self) -> bool:
        limit = self.config.trainer.time_limit_s
        return limit is None or time.monotonic() - self.began < limit


def fitted(config: Config, fit: Fit) -> tuple[artifacts.FitSummary, Ending]:
    """Fits, and writes what the run leaves; its summary, and why it ended."""
    if config.run.resume:
        fit.restore()
    ending = fit.run()
    held_out, folder = len(fit.pairs.held_out), fit.folder
    summary = artifacts.summarize_fit(fit.history, held_out, time.monotonic() - fit.began)
    parts: list[Callable[[], object]] = [
        lambda: artifacts.plot_fit(folder / "accuracy.png", fit.history, folder.name)
    ]
    if config.trainer.save_interval:
        parts.append(fit.save)
    parts.append(lambda: export(fit.group, folder, fit.save))
    parts.append(lambda: artifacts.write_summary(folder, summary))
    finish(folder, parts)
    return summary, ending
