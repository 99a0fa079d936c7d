"""artifacts: what a run leaves in its folder for people and scripts, besides its logs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True)
class FitSummary:
    """summary.json of a reward model: `loss` and `accuracy` over the `held_out` pairs, or else the
    means of the last ten steps."""

    loss: float
    accuracy: float
    held_out: int
    steps: int
    seconds: float


def summarize_fit(history: Sequence[Metrics], held_out: int, seconds: float) -> FitSummary:
    """The summary from the metrics of the steps, of which there is at least one; the last has an
    evaluation where pairs are held out."""

    def over(name: str) -> float:
        if f"eval/{name}" in history[-1]:
            return history[-1][f"eval/{name}"]
        last = [metrics[f"reward_model/{name}"] for metrics in history[-REWARD_WINDOW:]]
        return sum(last) / len(last)

    return FitSummary(over("loss"), over("accuracy"), held_out, len(history), seconds)


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


def write_summary(folder: Path, summary: Summary | FitSummary) -> None:
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
    _plot(path, history, title, {"mean reward": ("reward/mean", "eval/reward")})


def plot_fit(path: Path, history: Sequence[Metrics], title: str) -> None:
    """The same of a reward model: its loss, and how many pairs it has in the right order."""
    curves = {
        "loss": ("reward_model/loss", "eval/loss"),
        "pairs in the right order": ("reward_model/accuracy", "eval/accuracy"),
    }
    _plot(path, history, title, curves)


def _plot(
    path: Path, history: Sequence[Metrics], title: str, curves: Mapping[str, tuple[str, str]]
) -> None:
    """`curves`: by label, the metric of steps and that of evaluations; side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7 * len(curves), 4), layout="constrained")
    figure.suptitle(title)
    for place, (label, (of_step, of_evaluation)) in enumerate(curves.items(), start=1):
        axes = figure.add_subplot(1, len(curves), place)
        values = [metrics[of_step] for metrics in history]
        windows = [values[max(0, end - REWARD_WINDOW) : end] for end in range(1, len(values) + 1)]
        means = [sum(window) / len(window) for window in windows]
        steps = range(1, len(values) + 1)
        axes.plot(steps, values, color="0.7", linewidth=1, label="each step")
        behind = f"mean of the last {REWARD_WINDOW}"
        axes.plot(steps, means, color="tab:blue", linewidth=2, label=behind)
        evaluated = [
            (step, metrics[of_evaluation])
            for step, metrics in zip(steps, history, strict=True)
            if of_evaluation in metrics
        ]
        if evaluated:
            axes.plot(*zip(*evaluated, strict=True), "o", color="tab:orange", label="evaluation")
        axes.set(xlabel="step", ylabel=label)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
