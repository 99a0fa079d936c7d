"""protocol: what an environment is: it answers the responses of a policy, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hybridengine.rlhf.data.samples import Sample


@dataclass(frozen=True)
class Turn:
    """What an environment answers to a response.

    `observation`: the text that follows the response and comes before the next one; None ends the
    episode. `reward`: of this turn, added to what reward functions give the whole. `numbers`: what
    happened in it, by names of Environment.counts.
    """

    observation: str | None
    reward: float = 0.0
    numbers: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """One episode at a time. It lives in the process that generates, and is called between tokens:
    what is slow holds up the other sequences of its rank. A class has the options of the config as
    keyword arguments.

    What it raises ends the run: a tool that fails says so in its observation.
    """

    stop: Sequence[str]
    """Texts that end a response, besides those of rollout.stop."""

    counts: Sequence[str]
    """Names of numbers that are added up over the turns of an episode, from 0; their means over
    episodes are logged as environment/name."""

    def reset(self, sample: Sample) -> str:
        """Begins the episode of `sample`. Returns the text that follows its prompt, maybe none."""

    def step(self, response: str) -> Turn:
        """Answers a response, its text without special tokens, with what ended it."""

    def demonstration(self) -> Sequence[str] | None:
        """Responses that solve the sample of reset(), which a warm-up learns from; None where the
        warm-up takes the answer of the sample."""
