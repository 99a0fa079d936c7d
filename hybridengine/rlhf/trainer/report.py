"""report: what a run says on the console when it begins and when it has ended well.

Facts that belong together share a line that is broken between words; a path has a line to itself
and is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hybridengine.command.visible import rows_of, visible, wrapped
from hybridengine.rlhf.config.presets import NONE
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import Counts
from hybridengine.rlhf.trainer.artifacts import FitSummary, Sample, Summary
from hybridengine.wording import counted

# What a run may leave, and what it is for.
_LEFT = {
    "reward.png": "the curve",
    "accuracy.png": "the curves",
    "samples.jsonl": "prompts with answers before and after",
    "metrics.jsonl": "every number of every step",
    "summary.json": "the numbers of the run",
    "rollouts": "the responses trained on, with scores",
    "checkpoints": "run.resume=true goes on from here",
    "hf": "the model, for from_pretrained",
}


def announce(
    screen: Console, config: Config, roles: Sequence[str], counts: Counts, folder: Path
) -> None:
    """The run's folder, the preset where there is one, who trains on how many ranks, on what."""
    preset = "" if config.preset == NONE else f"preset {config.preset}, "
    screen.print(str(folder), soft_wrap=True)
    say(
        screen,
        f"{preset}{config.algorithm.advantage} on {_where(config)}: {', '.join(roles)}",
    )
    noun = "response" if config.data.mode == "offline" else "prompt"
    say(screen, f"{_kept(counts, noun)}, {_steps(config)}")


def _where(config: Config) -> str:
    """The pools, or the ranks that train and the placement which stands for pools."""
    if config.pools:
        each = (f"{name} {pool.ranks}" for name, pool in config.pools.items())
        return f"pools of ranks {', '.join(each)}"
    return f"{counted(config.trainer.ranks, 'rank')} ({config.trainer.placement})"


def announce_fit(
    screen: Console, config: Config, counts: Counts, num_held_out: int, folder: Path
) -> None:
    """The same of a reward model."""
    screen.print(str(folder), soft_wrap=True)
    say(
        screen,
        f"reward model on {counted(config.trainer.ranks, 'rank')}: "
        f"{_kept(counts, 'pair')}, {num_held_out:,} of them held out, {_steps(config)}",
    )


def conclude(
    screen: Console,
    summary: Summary,
    samples: Sequence[Sample],
    folder: Path,
    ending: str = "",
) -> None:
    """Samples, then what the run learned and why it ended (`ending`; empty: all steps are done),
    then what it left."""
    if samples:
        _show(screen, samples)
    facts = [
        f"reward {summary.reward_first:.3f} -> {summary.reward_last:.3f} in "
        f"{counted(summary.steps, 'step')}",
        f"{summary.seconds:.0f} s",
    ]
    if summary.reshard_received_over_bound is not None:
        facts.append(f"reshard {summary.reshard_received_over_bound:.2f} of the bound")
    if summary.reward_errors:
        facts.append(f"{counted(summary.reward_errors, 'reward')} failed")
    _end(screen, facts, ending, folder)


def conclude_fit(screen: Console, summary: FitSummary, folder: Path, ending: str = "") -> None:
    """What a reward model learned, why it ended, and what it left."""
    over = (
        f"{counted(summary.held_out, 'held-out pair')} in the right order"
        if summary.held_out
        else "the last steps' pairs in the right order (none is held out: data.eval_share)"
    )
    facts = [
        f"loss {summary.loss:.3f}",
        f"{summary.accuracy:.1%} of {over}",
        counted(summary.steps, "step"),
        f"{summary.seconds:.0f} s",
    ]
    _end(screen, facts, ending, folder)


def _end(screen: Console, facts: Sequence[str], ending: str, folder: Path) -> None:
    say(screen, ", ".join(facts))
    say(screen, ending or "all steps are done")
    list_files(screen, folder)


def _steps(config: Config) -> str:
    trainer = config.trainer
    limit = "" if trainer.time_limit_s is None else f", at most {trainer.time_limit_s:g} s"
    return f"{counted(trainer.steps or 0, 'step')}{limit}"


def list_files(screen: Console, folder: Path) -> None:
    """What is in the run's folder, a whole path a line, with what it is where there is room."""
    found = {name: str(folder / name) for name in _LEFT if _has_content(folder / name)}
    longest = max(map(len, found.values()), default=0)
    lines = [f"{path.ljust(longest)}  {_LEFT[name]}" for name, path in found.items()]
    if any(len(line) > screen.width for line in lines):
        lines = list(found.values())
    for line in lines:
        screen.print(line, soft_wrap=True)


def say(screen: Console, text: str) -> None:
    """Text that is broken between words where it does not fit; nothing where there is none."""
    if text:
        screen.print(wrapped(text, screen.width), soft_wrap=True)


def show_table(screen: Console, lines: Sequence[str]) -> None:
    """Lines whose columns stand below each other, whatever the width."""
    for line in lines:
        screen.print(line, soft_wrap=True)


def _kept(counts: Counts, noun: str) -> str:
    if counts.read == counts.kept:
        return counted(counts.kept, noun)
    return (
        f"{counts.kept:,} of {counted(counts.read, noun)} ({counts.too_long:,} too long, "
        f"{counts.empty:,} empty)"
    )


def _has_content(path: Path) -> bool:
    if path.is_dir():
        return any(path.iterdir())
    return path.exists() and path.stat().st_size > 0


def _show(screen: Console, samples: Sequence[Sample]) -> None:
    """A few prompts with their answers, each a line; samples.jsonl has all of them whole."""
    cells = [["prompt", "truth", "before", "after"]]
    cells += [
        [visible(each) for each in (s.prompt, s.ground_truth, s.before, s.after)] for s in samples
    ]
    more = "…" if screen.encoding.startswith("utf") else "..."
    heading, *rows = rows_of(cells, screen.width, more)
    screen.print("\n" + heading, style="bold", soft_wrap=True)
    screen.print("\n".join(rows) + "\n", soft_wrap=True)
