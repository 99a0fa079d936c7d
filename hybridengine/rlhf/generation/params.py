"""params: what an engine is asked for, and what it answers. Plain values.

They know no model: what a model or an engine cannot do is refused where it runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hybridengine._core import UsageError

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class SamplingParams:
    """How responses are sampled.

    `max_tokens`: the most tokens of a response. Logits are divided by `temperature`; of the
    distribution that this gives, the `top_k` likeliest tokens stay (0: all), and of those the
    fewest likeliest ones whose probabilities add up to `top_p`. A response ends with an
    end-of-sequence token (unless `ignore_eos`), with one of `stop_token_ids`, or with the token
    that completes one of the texts `stop`; what ends it stays in it. What ends it comes after
    `min_tokens` others: before, such tokens are not sampled, and texts are no end.

    `greedy` takes the likeliest token and ignores temperature, top_k and top_p. `seed` and the id
    of a sample alone decide what is drawn for it.

    Throws UsageError on a value that makes no sense.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    greedy: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        _check_whole("max_tokens", self.max_tokens, 1)
        _check_whole("min_tokens", self.min_tokens, 0)
        if self.min_tokens > self.max_tokens:
            raise UsageError(
                f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}. Use at "
                "most that."
            )
        _check_whole("top_k", self.top_k, 0)
        _check_whole("seed", self.seed, 0)
        if not 0 < self.temperature < math.inf:
            raise UsageError(
                f"temperature is {self.temperature}. Use a number above 0; for the likeliest "
                "token set greedy."
            )
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p}. Use a number above 0 and at most 1.")
        if isinstance(self.stop, str) or not all(isinstance(s, str) and s for s in self.stop):
            raise UsageError(f"stop is {self.stop!r}. Use a tuple of texts that are not empty.")
        for token in self.stop_token_ids:
            _check_whole("a token of stop_token_ids", token, 0)


@dataclass(frozen=True)
class Request:
    """One response that is wanted: `prompt` are token ids.

    `drawn`: how many tokens of the sample were drawn before, in earlier turns or in a response that
    was aborted and goes on here; the first token of this response is number `drawn`.
    """

    prompt: Sequence[int]
    params: SamplingParams
    sample_id: int
    drawn: int = 0


@dataclass(frozen=True)
class Generation:
    """A response: its tokens, the log-prob of each given those before it, the version of the
    weights that each was drawn from, and why it ended.

    Log-probs are of softmax(logits / temperature), cut to what min_tokens, top_k and top_p left; of
    greedy responses of softmax(logits), cut by min_tokens alone. `finish_reason` is "stop" where a
    token or a text ended the response, "length" where max_tokens or the engine's max_model_len did,
    "abort" where it was told to end; it may be empty then.
    """

    ids: list[int]
    log_probs: list[float]
    versions: list[int]
    finish_reason: FinishReason


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} is {value!r}. Use a whole number from {least}.")
