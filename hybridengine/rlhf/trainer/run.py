"""run: `hybridengine train` from a checked config to its exit code."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from hybridengine._core import UsageError
from hybridengine.rlhf.config.loading import save_config
from hybridengine.rlhf.config.presets import NONE
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.logging import open_screen, open_sinks
from hybridengine.rlhf.trainer import artifacts, report
from hybridengine.rlhf.trainer.checkpoints import Checkpoints
from hybridengine.rlhf.trainer.checks import check_cuts, check_resumable, checked_tokenizer
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.loop import Loop, eval_prompts
from hybridengine.rlhf.trainer.offline import Offline
from hybridengine.rlhf.trainer.placement import Roles, roles_of, start_roles
from hybridengine.rlhf.trainer.prompts import Prompts
from hybridengine.rlhf.trainer.step import Steps
from hybridengine.rlhf.trainer.warmup import warm_up
from hybridengine.rlhf.workers import Cluster

_NUM_SAMPLES = 8  # shown before and after


def train(config: Config) -> int:
    """Trains as the config says and leaves everything in its run folder. Returns 0.

    Throws UsageError before any process starts where data, tokenizer, model or rewards do not fit;
    WorkerError where a rank fails later.
    """
    began = time.monotonic()
    console = open_screen()
    tokenizer = checked_tokenizer(config)
    check_cuts(config)
    source: Prompts | Offline = (
        Offline(config, tokenizer) if config.data.mode == "offline" else Prompts(config, tokenizer)
    )
    config = with_steps(config, source.steps_per_epoch)
    folder = open_folder(config)
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, name=folder.name))
    save_config(config, folder / "config.yaml")
    report.announce(console, config, roles_of(config), source.counts, folder)
    with console.status("starting the ranks"):
        cluster = Cluster.start(config.cluster)
    with cluster:
        with console.status("starting the roles"):
            roles = start_roles(cluster, config)
        return _train(config, roles, source, folder, console, began)


def _train(
    config: Config,
    roles: Roles,
    source: Prompts | Offline,
    folder: Path,
    console: Console,
    began: float,
) -> int:
    steps = Steps(config, roles)
    checkpoints = Checkpoints(folder, roles, config)
    loop = Loop(config, steps, source, checkpoints, began=began)
    with console.status("warming up"):
        before = _prepare(config, steps, source, loop, console)
    sinks = open_sinks(config, folder)
    try:
        ending = loop.run(sinks)
    finally:
        sinks.close()
    samples = _samples(steps, source, before)
    summary = _finish(config, roles, loop, folder, samples, began)
    report.conclude(console, summary, samples, folder, str(ending))
    return 0


def _finish(
    config: Config,
    roles: Roles,
    loop: Loop,
    folder: Path,
    samples: list[artifacts.Sample],
    began: float,
) -> artifacts.Summary:
    """Writes what a run leaves; the summary is the last."""
    artifacts.write_samples(folder, samples)
    artifacts.plot_rewards(folder / "reward.png", loop.history, folder.name)
    if config.trainer.save_interval:
        loop.save()
    if config.trainer.save_hf:
        roles.actor.export(str(folder / "hf"))
    roles.reward.close()
    summary = artifacts.summarize(loop.history, time.monotonic() - began)
    artifacts.write_summary(folder, summary)
    return summary


def _prepare(
    config: Config, steps: Steps, source: Prompts | Offline, loop: Loop, console: Console
) -> list[str]:
    """Everything before the first step. Returns what the policy answers then to a few prompts."""
    if config.run.resume:
        if steps.roles.reference is not None:
            steps.roles.reference.freeze()
        loop.restore()
    else:
        if isinstance(source, Prompts):
            loss = warm_up(config, steps.roles.actor, source.encoder, source.train)
            if loss is not None:
                console.print(f"warm-up: {config.warmup.steps} supervised steps, loss {loss:.3f}")
        if steps.roles.reference is not None:
            steps.roles.reference.freeze()
    if steps.roles.rollout is None or not isinstance(source, Prompts):
        return []
    steps.sync(Clock())
    return steps.texts(eval_prompts(_shown(source)))


def _shown(source: Prompts) -> list[Any]:
    return list((source.eval or source.train)[:_NUM_SAMPLES])


def _samples(steps: Steps, source: Prompts | Offline, before: list[str]) -> list[artifacts.Sample]:
    if not before or not isinstance(source, Prompts):
        return []
    shown = _shown(source)
    after = steps.texts(eval_prompts(shown))
    return [
        artifacts.Sample(each.text, str(each.sample.ground_truth), old, new)
        for each, old, new in zip(shown, before, after, strict=True)
    ]


def with_steps(config: Config, steps_per_epoch: int) -> Config:
    """The config with `trainer.steps` set, from the epochs unless it is."""
    if config.trainer.steps is not None:
        return config
    trainer = dataclasses.replace(config.trainer, steps=config.trainer.epochs * steps_per_epoch)
    return dataclasses.replace(config, trainer=trainer)


def open_folder(config: Config) -> Path:
    """The run's folder, new unless it resumes. Throws UsageError if a run of that name is there."""
    name = config.run.name
    if name is None:
        kind = "run" if config.preset == NONE else config.preset
        name = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = Path(config.run.dir) / name
    check_resumable(config, folder)
    if folder.exists() and any(folder.iterdir()) and not config.run.resume:
        if config.run.name is not None and not (folder / "config.yaml").exists():
            raise UsageError(
                f"{folder} is not empty and holds no run. Name another folder with run.name."
            )
        _set_aside(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _set_aside(folder: Path) -> None:
    """A run of the same name from before is kept under a number."""
    number = 1
    while (kept := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    folder.rename(kept)
    sys.stderr.write(f"hybridengine: an earlier run {folder} was moved to {kept}\n")
