"""protocol: what the trainer needs of whatever generates, and a batch of responses by it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.generation.params import Generation, Request, SamplingParams


class RolloutEngine(Protocol):
    """Takes requests at any time and runs many at once. Nothing happens but in poll()."""

    @property
    def version(self) -> int:
        """That of the weights which the next token is drawn from."""

    @property
    def unfinished(self) -> int:
        """Requests that were submitted and not yet returned."""

    def submit(self, request: Request) -> int:
        """Takes a request; returns the number that stands for it. What is drawn for a sample
        depends on its seed, its id and how many tokens were drawn before alone. Throws UsageError
        that names the sample where it cannot run."""

    def poll(self, steps: int = 16) -> list[tuple[int, Generation]]:
        """Goes on until a response ends, for `steps` tokens at most. Returns those that ended, by
        number; each is returned once, in the order in which they end."""

    def abort(self, numbers: Collection[int] | None = None) -> list[tuple[int, Generation]]:
        """Ends requests, by default all; what they have so far, which the engine forgets."""

    def load_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """The next tokens come from these weights, named as in the HF checkpoint; the engine keeps
        the tensors. Requests that run go on."""

    def sleep(self) -> None:
        """Gives back the memory of weights, keys and values, until load_weights()."""

    def free(self) -> None:
        """Gives back the memory of keys and values until the next request."""


def generate(
    engine: RolloutEngine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    sample_ids: Sequence[int],
) -> list[Generation]:
    """One response per prompt (token ids), in the order of the prompts, by an engine that runs
    nothing else. Throws UsageError on sample ids that are not one for each prompt, all different
    unless greedy, and what submit() and poll() throw; nothing is left in the engine then."""
    _check_sample_ids(sample_ids, len(prompts), params.greedy)
    found: dict[int, Generation] = {}
    try:
        numbers = [
            engine.submit(Request(prompt, params, sample))
            for prompt, sample in zip(prompts, sample_ids, strict=True)
        ]
        while len(found) < len(numbers):
            found.update(engine.poll())
    except BaseException:
        engine.abort()
        raise
    return [found[number] for number in numbers]


def _check_sample_ids(given: Sequence[int], size: int, repeats: bool) -> None:
    if len(given) != size:
        raise UsageError(
            f"there are {len(given)} sample ids for {size} prompts. Pass one for each prompt."
        )
    values, counts = np.unique(np.array(given, np.int64), return_counts=True)
    if len(values) < size and not repeats:
        raise UsageError(
            f"sample id {values[counts > 1][0]} is given twice: both samples would draw the "
            "same numbers. Give every sample an id of its own."
        )
