"""sinks: one interface for the console, files, TensorBoard and wandb."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from hybridengine.rlhf.config.schema import Config

Metrics = Mapping[str, float]


class Sink(Protocol):
    """Takes the metrics of one step at a time: names like "actor/kl" with plain numbers."""

    def log(self, step: int, metrics: Metrics) -> None: ...

    def close(self) -> None: ...


class Sinks:
    """Several as one. close() closes all of them, also when one fails."""

    def __init__(self, sinks: list[Sink]) -> None:
        self._sinks = sinks

    def log(self, step: int, metrics: Metrics) -> None:
        for sink in self._sinks:
            sink.log(step, metrics)

    def close(self) -> None:
        failures = []
        while self._sinks:
            try:
                self._sinks.pop().close()
            except Exception as error:  # the others still have to write what they hold
                failures.append(error)
        if failures:
            raise failures[0]


class JsonLines:
    """metrics.jsonl: one object a step. What is not finite is null, which JSON can hold."""

    def __init__(self, path: Path, step: int = 0) -> None:
        """`step`: the last that counts of what is there. A run that was killed may have written
        lines of more behind its checkpoint, and half a line."""
        if path.exists():
            _drop_later(path, step)
        self._file = path.open("a")

    def log(self, step: int, metrics: Metrics) -> None:
        row = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps({"step": step, **row}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _drop_later(path: Path, step: int) -> None:
    """Of the lines in `path`, those behind `step` and those that do not read."""
    kept = [line for line in path.read_text().splitlines(keepends=True) if _is_of(line, step)]
    scratch = path.with_name(f"{path.name}.tmp")
    scratch.write_text("".join(kept))
    os.replace(scratch, path)


def _is_of(line: str, step: int) -> bool:
    """Whether it is a whole line of a step up to `step`."""
    try:
        return line.endswith("\n") and json.loads(line)["step"] <= step
    except ValueError:
        return False


class TensorBoard:
    """Event files that `tensorboard --logdir` reads."""

    def __init__(self, folder: Path, step: int = 0) -> None:
        """`step`: as of JsonLines; what is behind it is not shown any more."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def log(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A Weights & Biases run; offline it stays below the run's folder, for `wandb sync`. A run that
    goes on is another one there."""

    def __init__(self, config: Config, folder: Path) -> None:
        import wandb

        self._run = wandb.init(
            project=config.wandb.project,
            entity=config.wandb.entity,
            mode="online" if config.wandb.mode == "online" else "offline",
            name=folder.name,
            dir=str(folder),
            config=config.model_dump(),
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, step: int, metrics: Metrics) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def _console(config: Config, folder: Path, step: int) -> Sink:
    from hybridengine.rlhf.logging.console import ConsoleLines

    return ConsoleLines(config.trainer.steps)


SINKS: dict[str, Callable[[Config, Path, int], Sink]] = {
    "console": _console,
    "jsonl": lambda config, folder, step: JsonLines(folder / "metrics.jsonl", step),
    "tensorboard": lambda config, folder, step: TensorBoard(folder / "tensorboard", step),
    "wandb": lambda config, folder, step: Wandb(config, folder),
}


def open_sinks(config: Config, folder: Path, step: int = 0) -> Sinks:
    """The sinks that `trainer.loggers` names, which config checks have found known. `step`: the
    last that was done where a run goes on: what they have of later ones is dropped."""
    return Sinks([SINKS[name](config, folder, step) for name in config.trainer.loggers])
