"""responses: prompts with given answers as token ids, for supervised, offline and pair training.

Prompt and answer are tokenised apart and joined, so that no token lies over the border and the
prompt's ids are those that generation starts from. Every answer ends with eos.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridengine._core import UsageError
from hybridengine.rlhf.data.encoding import Counts, PromptEncoder
from hybridengine.rlhf.data.samples import Pair, Sample


@dataclass(frozen=True)
class EncodedResponse:
    """`ids`: prompt, response and eos; the response starts at `prompt_length`."""

    sample: Sample
    ids: list[int]
    prompt_length: int


@dataclass(frozen=True)
class EncodedPreference:
    """Two rows of ids with the same first `prompt_length`; both end with eos."""

    pair: Pair
    chosen_ids: list[int]
    rejected_ids: list[int]
    prompt_length: int


def encode_pairs(
    encoder: PromptEncoder, samples: Sequence[Sample], max_response_length: int
) -> tuple[list[EncodedResponse], Counts]:
    """Prompts with their responses, in order. What is longer than either limit, eos included, is
    left out and counted; so is an empty prompt or response.

    Throws UsageError for a sample without a response, where none is kept, and for a prompt too long
    unless the encoder filters them.
    """
    texts = []
    for sample in samples:
        if sample.response is None:
            raise UsageError(
                f"{sample.name()} ({sample.data_source}) has no response to learn from. "
                f"Give the data a column of responses, named by data.response_key."
            )
        texts.append(sample.response)
    answers = encoder.encode_answers(texts)
    kept: list[EncodedResponse] = []
    tally = _Tally(encoder, max_response_length)
    for sample, (ids, _), answer in zip(
        samples, encoder.encode_prompts(samples), answers, strict=True
    ):
        if tally.keeps(sample, ids, answer):
            kept.append(EncodedResponse(sample, ids + answer, len(ids)))
    return kept, tally.counts()


def encode_preferences(
    encoder: PromptEncoder, pairs: Sequence[Pair], max_response_length: int
) -> tuple[list[EncodedPreference], Counts]:
    """Pairs, in order. A pair is left out and counted as in `encode_pairs`, for either answer.

    Throws UsageError where none is kept, and for a prompt too long unless they are filtered.
    """
    chosen = encoder.encode_answers([pair.chosen for pair in pairs])
    rejected = encoder.encode_answers([pair.rejected for pair in pairs])
    kept: list[EncodedPreference] = []
    tally = _Tally(encoder, max_response_length)
    for pair, (ids, _), better, worse in zip(
        pairs, encoder.encode_prompts(pairs), chosen, rejected, strict=True
    ):
        if tally.keeps(pair, ids, better, worse):
            kept.append(EncodedPreference(pair, ids + better, ids + worse, len(ids)))
    return kept, tally.counts()


class _Tally:
    """Decides by length, and counts."""

    def __init__(self, encoder: PromptEncoder, max_response_length: int) -> None:
        self._encoder, self._max_response_length = encoder, max_response_length
        self._kept = self._too_long = self._empty = 0

    def keeps(self, sample: Sample | Pair, prompt: list[int], *answers: list[int]) -> bool:
        """Answers have eos at their end: one of length 1 is empty."""
        if not prompt or any(len(answer) < 2 for answer in answers):
            self._empty += 1
            return False
        longest = max(len(answer) for answer in answers)
        if self._encoder.is_overlong(sample, prompt) or longest > self._max_response_length:
            self._too_long += 1
            return False
        self._kept += 1
        return True

    def counts(self) -> Counts:
        """Throws UsageError where nothing was kept."""
        read = self._kept + self._too_long + self._empty
        counts = Counts(read, self._kept, self._too_long, self._empty)
        counts.refuse_none(
            f"data.max_prompt_length ({self._encoder.max_prompt_length} tokens) or "
            f"data.max_response_length ({self._max_response_length} tokens)"
        )
        return counts
