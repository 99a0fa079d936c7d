"""artifacts: what a run leaves in its folder for people and scripts, besides its logs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hybridengine.rlhf.logging.sinks import Metrics

# Steps whose mean is the first and the last reward of a run.
REWARD_WINDOW = 10


@dataclass(frozen=True)
class Summary:
    """summary.json. Rewards are means of sampled responses: `reward_first` of the first step, which
    is after the warm-up and before any update, `reward_last` of the last ten steps."""

    reward_first: float
    reward_last: float
    reshard_received_over_bound: float | None  # None where nothing was moved
    steps: int
    seconds: float
    reshard_share: float  # of the time of all steps
    controller_share: float  # of the time of all steps, in which no role computed
    tokens_per_second: float | None  # generated, over the time of generation
    reward_errors: int  # samples that a reward failed on, in all steps


def summarize(history: Sequence[Metrics], seconds: float) -> Summary:
    """The summary of a run from the metrics of its steps, of which there is at least one."""
    rewards = [metrics["reward/mean"] for metrics in history]
    last = rewards[-REWARD_WINDOW:]

    def total(name: str) -> float:
        return sum(metrics.get(name, 0.0) for metrics in history)

    bound, received = total("reshard/bound_bytes"), total("reshard/received_bytes")
    step_seconds, generating = max(total("time/step"), 1e-9), total("time/rollout")
    return Summary(
        reward_first=rewards[0],
        reward_last=sum(last) / len(last),
        reshard_received_over_bound=received / bound if bound else None,
        steps=len(history),
        seconds=seconds,
        reshard_share=total("time/reshard") / step_seconds,
        controller_share=total("time/controller") / step_seconds,
        tokens_per_second=total("rollout/tokens") / generating if generating else None,
        reward_errors=int(total("reward/errors")),
    )


def write_summary(folder: Path, summary: Summary) -> None:
    """Whole or not at all: a script may be waiting for the file."""
    text = json.dumps(asdict(summary), indent=2) + "\n"
    scratch = folder / "summary.json.tmp"
    scratch.write_text(text)
    os.replace(scratch, folder / "summary.json")


@dataclass(frozen=True)
class Sample:
    """One prompt with what the policy answered before and after training."""

    prompt: str
    ground_truth: str
    before: str
    after: str


def write_samples(folder: Path, samples: Sequence[Sample]) -> None:
    lines = (json.dumps(asdict(sample)) + "\n" for sample in samples)
    (folder / "samples.jsonl").write_text("".join(lines))


def plot_rewards(path: Path, history: Sequence[Metrics], title: str) -> None:
    """The reward curve as a PNG: every step, and the mean of the last ten at each step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    rewards = [metrics["reward/mean"] for metrics in history]
    windows = [rewards[max(0, end - REWARD_WINDOW) : end] for end in range(1, len(rewards) + 1)]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    steps = range(1, len(rewards) + 1)
    axes.plot(steps, rewards, color="0.7", linewidth=1, label="each step")
    axes.plot(
        steps,
        [sum(window) / len(window) for window in windows],
        color="tab:blue",
        linewidth=2,
        label=f"mean of the last {REWARD_WINDOW}",
    )
    evaluated = [
        (step, metrics["eval/reward"])
        for step, metrics in zip(steps, history, strict=True)
        if "eval/reward" in metrics
    ]
    if evaluated:
        axes.plot(*zip(*evaluated, strict=True), "o", color="tab:orange", label="evaluation")
    axes.set(xlabel="step", ylabel="mean reward", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
