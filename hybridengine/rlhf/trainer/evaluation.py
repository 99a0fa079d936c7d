"""evaluation: what the policy does on prompts that it is never trained on.

A *set* is a list of prompts with a way to sample: that of data.eval_files or the generator, which
has no name, and those of eval_sets. Every evaluation draws the same random numbers, so that two of
them differ by the policy alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.records import EvalSampling
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import Encoded, PromptEncoder, open_data
from hybridengine.rlhf.data.files import read_files
from hybridengine.rlhf.trainer.clock import Clock
from hybridengine.rlhf.trainer.preflight import check_ground_truth
from hybridengine.rlhf.trainer.prompts import as_prompts
from hybridengine.rlhf.trainer.scored import Scored
from hybridengine.rlhf.trainer.step import Steps

# Serial numbers of evaluation prompts begin here, far from those of training, and sets are as far
# apart.
_FIRST_SERIAL = 1 << 40
_SET_STRIDE = 1 << 32


@dataclass(frozen=True)
class HeldOut:
    """`name`: empty for the set that has none. `serial`: of its first prompt."""

    name: str
    prompts: Sequence[Encoded]
    sampling: EvalSampling
    serial: int = _FIRST_SERIAL

    @property
    def options(self) -> dict[str, Any]:
        """Those of SamplingParams that differ from training's."""
        if self.sampling.temperature == 0:
            return {"greedy": True}
        return {"temperature": self.sampling.temperature, "top_p": self.sampling.top_p}


def open_held_out(config: Config, encoder: PromptEncoder) -> list[HeldOut]:
    """The sets of a run, the one without a name first, where it has prompts. Throws UsageError as
    the readers of data do, and where prompts lack what rewards need."""
    sets = []
    unnamed = open_data(config, "eval")
    if unnamed:
        sets.append(HeldOut("", encoder.encode(unnamed)[0], config.evaluation))
    for number, (name, each) in enumerate(config.eval_sets.items(), start=1):
        prompts = encoder.encode(read_files(each.files, config.data))[0]
        sets.append(HeldOut(name, prompts, each, _FIRST_SERIAL + number * _SET_STRIDE))
    for held_out in sets:
        check_ground_truth(config.reward, held_out.prompts)
    return sets


def evaluated(steps: Steps, held_out: HeldOut) -> dict[str, float]:
    """The metrics of a set with the weights that generate now."""
    prompts = eval_prompts(held_out.prompts, held_out.sampling.n, held_out.serial)
    scored = steps.respond(prompts, Clock(), held_out.options)
    return metrics_of(held_out, scored, steps.config.evaluation.pass_score)


def eval_prompts(prompts: Sequence[Encoded], n: int = 1, serial: int = _FIRST_SERIAL) -> Batch:
    """Each n times, with serial numbers that no training prompt has."""
    return as_prompts(prompts, range(serial, serial + len(prompts)), n)


def metrics_of(held_out: HeldOut, scored: Scored, pass_score: float) -> dict[str, float]:
    """`scored`: n rows for each prompt, one prompt behind the other. A response passes whose score
    is at least `pass_score`."""
    n, scores = held_out.sampling.n, scored.task_scores
    prefix = "/".join(filter(None, ("eval", held_out.name)))
    right = [
        sum(each >= pass_score for each in scores[i : i + n]) for i in range(0, len(scores), n)
    ]
    found = {
        "reward": _mean(scores),
        "errors": float(scored.errors),
        "length": _mean(scored.responses),
        "truncated": _mean(scored.truncated),
        **{f"pass@{k}": _mean([pass_at_k(n, c, k) for c in right]) for k in _powers(n)},
    }
    sources = [each.sample.data_source for each in held_out.prompts for _ in range(n)]
    if len(set(sources)) > 1:
        for source in sorted(set(sources)):
            own = [score for score, each in zip(scores, sources, strict=True) if each == source]
            found[f"reward/{source.replace('/', '_')}"] = _mean(own)
    return {f"{prefix}/{name}": value for name, value in found.items()}


def pass_at_k(n: int, right: int, k: int) -> float:
    """The chance that k of n responses, drawn without repetition, have one of the `right` among
    them: 1 - C(n - right, k) / C(n, k), unbiased for k <= n (Chen et al. 2021, section 2.1)."""
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def _powers(n: int) -> list[int]:
    """1, 2, 4, ... up to n, and n."""
    powers = [1 << bit for bit in range(n.bit_length()) if 1 << bit <= n]
    return powers if powers[-1] == n else [*powers, n]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)
