"""requests: the prompts of one call and what has been generated for them, as arrays by prompt.

Rows of a batch change places while they run; here nothing moves. Knows no model and no slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridengine._core import UsageError
from hybridengine.rlhf.generation.params import FinishReason, Generation, SamplingParams

Ints = npt.NDArray[np.int64]


class Requests:
    """`prompts` under `params`. `which` below are numbers of prompts, int64 [B].

    Throws UsageError that names the prompt where one is empty, leaves no room for a token or has
    one that is not in the vocabulary, and on sample ids that do not fit.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        sample_ids: Sequence[int],
        *,
        max_model_len: int,
        vocab: int,
    ) -> None:
        self.prompts = [list(prompt) for prompt in prompts]
        self.sample_ids = _sample_ids(sample_ids, len(prompts), params.greedy)
        lengths = np.array([len(prompt) for prompt in self.prompts], np.int64)
        _check_lengths(lengths, self.sample_ids, max_model_len)
        _check_tokens(self.prompts, self.sample_ids, vocab)
        self.limits = np.minimum(params.max_tokens, max_model_len - lengths)
        self.counts = np.zeros_like(lengths)
        self._last_of_prompt = lengths - 1
        self._next = np.array([prompt[-1] for prompt in self.prompts], np.int64)
        width = int(self.limits.max())
        self._ids = np.empty((len(lengths), width), np.int64)
        self._log_probs = np.empty((len(lengths), width), np.float64)
        self._stopped = np.zeros(len(lengths), bool)

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def capacity(self) -> int:
        """Positions of the longest sequence; its last token is never run."""
        return int((self._last_of_prompt + self.limits).max())

    def inputs(self, which: Ints) -> tuple[Ints, Ints]:
        """The token that each of them runs next, and its position."""
        return self._next[which], self._last_of_prompt[which] + self.counts[which]

    def take(self, which: Ints, tokens: Ints, log_probs: npt.NDArray[Any]) -> None:
        """The next token of each. Throws UsageError where a log-prob is no number."""
        if not np.isfinite(log_probs).all():
            self._refuse(which[np.flatnonzero(~np.isfinite(log_probs))[0]])
        counts = self.counts[which]
        self._ids[which, counts] = tokens
        self._log_probs[which, counts] = log_probs
        self._next[which] = tokens
        self.counts[which] = counts + 1

    def stop(self, which: Ints) -> None:
        """Their last token ends them."""
        self._stopped[which] = True

    def ended(self, which: Ints) -> npt.NDArray[np.bool_]:
        """bool [B]: stopped, or at their limit."""
        done: npt.NDArray[np.bool_] = self._stopped[which] | (
            self.counts[which] >= self.limits[which]
        )
        return done

    def generations(self) -> list[Generation]:
        return [self._generation(number) for number in range(len(self))]

    def _generation(self, number: int) -> Generation:
        count = self.counts[number]
        reason: FinishReason = "stop" if self._stopped[number] else "length"
        return Generation(
            self._ids[number, :count].tolist(), self._log_probs[number, :count].tolist(), reason
        )

    def _refuse(self, number: int) -> None:
        raise UsageError(
            f"{_named(number, self.sample_ids)} has logits that are no numbers at token "
            f"{self.counts[number]} of its response: NaN or infinite. Look for NaN in the weights "
            "that were loaded."
        )


def _named(number: int, sample_ids: Ints) -> str:
    return f"prompt {number} (sample {sample_ids[number]})"


def _sample_ids(given: Sequence[int], size: int, repeats: bool) -> Ints:
    if len(given) != size:
        raise UsageError(
            f"there are {len(given)} sample ids for {size} prompts. Pass one for each prompt."
        )
    ids = np.array(given, np.int64).reshape(-1)
    if not repeats:
        values, counts = np.unique(ids, return_counts=True)
        if len(values) < size:
            raise UsageError(
                f"sample id {values[counts > 1][0]} is given twice: both samples would draw the "
                "same numbers. Give every sample an id of its own."
            )
    return ids


def _check_lengths(lengths: Ints, sample_ids: Ints, max_model_len: int) -> None:
    if not lengths.all():
        number = int(np.flatnonzero(lengths == 0)[0])
        raise UsageError(
            f"{_named(number, sample_ids)} is empty. Begin it with a token, for example the one "
            "that begins a text."
        )
    if (lengths >= max_model_len).any():
        number = int(np.flatnonzero(lengths >= max_model_len)[0])
        raise UsageError(
            f"{_named(number, sample_ids)} has {lengths[number]} tokens, which leaves no room for "
            f"a response in max_model_len {max_model_len}. Shorten it, or raise "
            "rollout.max_model_len."
        )


def _check_tokens(prompts: list[list[int]], sample_ids: Ints, vocab: int) -> None:
    for number, prompt in enumerate(prompts):
        if min(prompt) < 0 or max(prompt) >= vocab:
            token = next(token for token in prompt if not 0 <= token < vocab)
            raise UsageError(
                f"{_named(number, sample_ids)} has token {token}, but the model's vocabulary has "
                f"{vocab}. Use the tokenizer that belongs to the model."
            )
