"""run: `hybridengine train` from a checked config to its exit code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from hybridengine.rlhf import rewards
from hybridengine.rlhf.config.role_names import roles_of
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import Encoded
from hybridengine.rlhf.environments.choosing import Environments
from hybridengine.rlhf.logging import busy, open_screen, open_sinks
from hybridengine.rlhf.model_files import check_models
from hybridengine.rlhf.roles.rollout_file import rollouts_folder
from hybridengine.rlhf.trainer import artifacts, report
from hybridengine.rlhf.trainer.changes import check_unchanged, words_of_changes
from hybridengine.rlhf.trainer.checkpoints import Checkpoints
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.evaluation import HeldOut, eval_prompts, open_held_out
from hybridengine.rlhf.trainer.export import export
from hybridengine.rlhf.trainer.failure import finish
from hybridengine.rlhf.trainer.folder import RunFolder
from hybridengine.rlhf.trainer.footprint import footprints, table
from hybridengine.rlhf.trainer.loop import Loop
from hybridengine.rlhf.trainer.placement import Roles, choose, idle_gpus, saved_roles, start_roles
from hybridengine.rlhf.trainer.preflight import check_attention, check_cuts
from hybridengine.rlhf.trainer.rehearsal import rehearse
from hybridengine.rlhf.trainer.resume import check_steps_left
from hybridengine.rlhf.trainer.source import Source, open_source
from hybridengine.rlhf.trainer.step import Steps
from hybridengine.rlhf.trainer.vocabulary import check_vocabularies, checked_tokenizer
from hybridengine.rlhf.trainer.warmup import warm_up
from hybridengine.rlhf.workers import Cluster
from hybridengine.wording import counted

_NUM_SAMPLES = 8  # shown before and after


def train(
    config: Config, command: Sequence[str] = ("hybridengine", "train"), *, dry: bool = False
) -> int:
    """Trains as the config says and leaves everything in its run folder. Returns 0. `dry`: ends
    when all that can be told beforehand has been, and leaves nothing.

    `command`: what was typed, for the words about how to go on. Throws UsageError before any
    process starts where folder, data, tokenizer, model or rewards do not fit, and nothing has
    changed then; RunError where the folder cannot be written later, WorkerError where a rank fails.
    """
    began = time.monotonic()
    console = open_screen()
    rewards.check(config.reward)
    Environments(config.environments)
    check_models(config)
    with RunFolder.claim(config) as folder:
        if config.run.resume:
            check_unchanged(config, folder.path, saved_roles(config))
        tokenizer = checked_tokenizer(config)
        check_vocabularies(config, tokenizer)
        check_attention(config)
        check_cuts(config)
        source = open_source(config, tokenizer)
        held_out = open_held_out(config, source.encoder)
        config = folder.named(with_steps(config, source.steps_per_epoch))
        if config.run.resume:
            check_steps_left(config, folder.path, exports=config.trainer.save_hf)
        rehearse(config, tokenizer, folder)
        report.announce(console, config, roles_of(config), source.counts, folder.path)
        if config.run.resume:
            report.say(console, words_of_changes(config, folder.path))
        report.show_table(console, table(footprints(config, choose(config, {}))))
        if dry:
            return 0
        with busy(console, "starting the ranks"):
            cluster = Cluster.start(config.cluster)
        with cluster:
            report.say(console, idle_gpus(config, cluster.available()))
            with busy(console, "starting the roles"):
                roles = start_roles(cluster, config)
            with folder.standing(config, command):
                _train(config, roles, source, held_out, folder.path, console, began)
    return 0


def _train(
    config: Config,
    roles: Roles,
    source: Source,
    held_out: Sequence[HeldOut],
    folder: Path,
    console: Console,
    began: float,
) -> None:
    steps = Steps(config, roles)
    checkpoints = Checkpoints(folder, roles.saved(config), config.trainer.keep_checkpoints)
    loop = Loop(config, steps, source, checkpoints, held_out=held_out, began=began)
    with busy(console, "warming up"):
        _prepare(config, steps, source, loop, console)
    sinks = open_sinks(config, folder, loop.record.step)
    try:
        ending = loop.run(sinks)
    finally:
        sinks.close()
    samples = _samples(steps, source, loop)
    summary = _finish(config, roles, loop, folder, samples)
    report.conclude(console, summary, samples, folder, str(ending))


def _finish(
    config: Config,
    roles: Roles,
    loop: Loop,
    folder: Path,
    samples: list[artifacts.Sample],
) -> artifacts.Summary:
    """Writes what a run leaves, of all its parts; the summary is the last, and says that the run is
    done. One part that cannot be written keeps no other from being there."""
    roles.reward.close()
    history = loop.record.history
    parts: list[Callable[[], object]] = [
        lambda: artifacts.write_samples(folder, samples),
        lambda: artifacts.plot_rewards(folder / "reward.png", history, folder.name),
    ]
    if config.trainer.save_interval:
        parts.append(loop.save)
    if config.trainer.save_hf:
        parts.append(lambda: export(roles.actor, folder, loop.save))
    summary = artifacts.summarize(history, loop.seconds)
    finish(folder, [*parts, lambda: artifacts.write_summary(folder, summary)])
    return summary


def _prepare(config: Config, steps: Steps, source: Source, loop: Loop, console: Console) -> None:
    """Everything before the first step of this part of the run."""
    if not config.run.resume:
        loss = warm_up(config, steps.roles.actor, source.encoder, source.train)
        if loss is not None:
            steps_done = counted(config.warmup.steps, "supervised step")
            console.print(f"warm-up: {steps_done}, loss {loss:.3f}")
    if steps.roles.reference is not None:
        steps.roles.reference.freeze()
    source.begin(steps)
    if config.run.resume:
        loop.restore()
    if steps.roles.rollout is None:
        return
    steps.sync(loop.step, Clock())
    if config.run.resume:
        source.resume_files(rollouts_folder(config))
    else:
        shown = _shown(source, loop)
        answers = steps.texts(eval_prompts(shown))
        loop.record.before = {e.text: answer for e, answer in zip(shown, answers, strict=True)}


def _shown(source: Source, loop: Loop) -> list[Encoded]:
    return list((loop.held_out[0].prompts if loop.held_out else source.train)[:_NUM_SAMPLES])


def _samples(steps: Steps, source: Source, loop: Loop) -> list[artifacts.Sample]:
    """Prompts of which the answer before the first step is known."""
    before = loop.record.before
    shown = [each for each in _shown(source, loop) if each.text in before]
    after = steps.texts(eval_prompts(shown)) if shown else []
    return [
        artifacts.Sample(each.text, str(each.sample.ground_truth), before[each.text], answer)
        for each, answer in zip(shown, after, strict=True)
    ]


def with_steps(config: Config, steps_per_epoch: int) -> Config:
    """The config with `trainer.steps` set, from the epochs unless it is."""
    if config.trainer.steps is not None:
        return config
    steps = {"steps": config.trainer.epochs * steps_per_epoch}
    return config.model_copy(update={"trainer": config.trainer.model_copy(update=steps)})
