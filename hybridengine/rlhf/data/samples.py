"""samples: what one row of data means, whatever it was read from. Text, not yet tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]  # of a chat: "role" and "content", both str, and maybe more


@dataclass(frozen=True)
class Tokens:
    """Prompt and response as a policy was fed and sampled them. By token of the response:
    `response_mask`, whether the policy chose it, and `log_probs`, by which it did, where they are
    known."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[bool]
    log_probs: list[float] | None


@dataclass(frozen=True)
class Sample:
    """A prompt and what a reward needs to judge an answer to it.

    `index` counts samples over all files of a split, in their order. `response` is the answer that
    the data gives, for supervised and offline training; None where there is none. One that was
    `truncated` has no end; `tokens` are there where the data has them. `where` is the place that it
    was read from, `train.jsonl:12`, which is no part of what the sample says.
    """

    index: int
    prompt: str | list[Message]
    response: str | None
    ground_truth: Any
    data_source: str
    extra: Any
    truncated: bool = False
    tokens: Tokens | None = None
    where: str = field(default="", compare=False)

    def name(self) -> str:
        """As errors name it."""
        return self.where or f"sample {self.index}"


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt, of which `chosen` was preferred. `where` as of a Sample."""

    index: int
    prompt: str | list[Message]
    chosen: str
    rejected: str
    where: str = field(default="", compare=False)

    def name(self) -> str:
        """As errors name it."""
        return self.where or f"sample {self.index}"
