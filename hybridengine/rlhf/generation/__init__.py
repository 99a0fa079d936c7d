"""Generation: rollout engines, and what goes in and comes out of them.

`Engine` is built in. Another engine stands in its place by having the methods of `RolloutEngine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from hybridengine.rlhf.generation.engine import Engine
from hybridengine.rlhf.generation.params import Generation, SamplingParams
from hybridengine.rlhf.generation.weights import load_weights

__all__ = ["Engine", "Generation", "RolloutEngine", "SamplingParams", "load_weights"]


class RolloutEngine(Protocol):
    """What the trainer needs of whatever generates."""

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, sample_ids: Sequence[int]
    ) -> list[Generation]:
        """One response per prompt, in their order; what is drawn for a sample depends on
        params.seed and its id alone."""

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """The next responses come from these weights, named as in the HF checkpoint; the engine
        keeps the tensors."""

    def free(self) -> None:
        """Gives back the memory of keys and values until the next call."""
