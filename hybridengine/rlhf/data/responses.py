"""responses: prompts with given answers as token ids, for supervised, offline and pair training.

Prompt and answer are tokenised apart and joined, so that no token lies over the border and the
prompt's ids are those that generation starts from. An answer ends with eos unless it was cut. Ids
that the data has of both are taken as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.data.encoding import Counts, PromptEncoder
from hybridengine.rlhf.data.samples import Pair, Sample

_SHOWN = 40  # characters of a text in an error


@dataclass(frozen=True)
class EncodedResponse:
    """`ids`: prompt and response; the response starts at `prompt_length`."""

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

    Throws UsageError for a sample without a response or with ids of another tokenizer, where none
    is kept, and for a prompt too long unless the encoder filters them.
    """
    kept: list[EncodedResponse] = []
    tally = _Tally(encoder, max_response_length)
    for sample, prompt, answer in _rows_of(encoder, samples):
        # A text has eos at its end: alone, it ends nothing. One that was sampled is an answer.
        shortest = 1 if sample.tokens is not None or sample.truncated else 2
        if tally.keeps(sample, prompt, answer, shortest=shortest):
            kept.append(EncodedResponse(sample, prompt + answer, len(prompt)))
    return kept, tally.counts()


def _rows_of(
    encoder: PromptEncoder, samples: Sequence[Sample]
) -> Iterator[tuple[Sample, list[int], list[int]]]:
    """Samples with the ids of prompt and response, in order."""
    for sample in samples:
        if sample.response is None:
            raise UsageError(
                f"{sample.name()} ({sample.data_source}) has no response to learn from. "
                f"Give the data a column of responses, named by data.response_key."
            )
    _check_tokens(encoder.tokenizer, samples)
    texts = [each for each in samples if each.tokens is None]
    prompts = iter(encoder.encode_prompts(texts))
    answers = iter(
        encoder.encode_answers(
            [str(each.response) for each in texts], [each.truncated for each in texts]
        )
    )
    for sample in samples:
        if sample.tokens is None:
            yield sample, next(prompts)[0], next(answers)
        else:
            yield sample, sample.tokens.prompt_ids, sample.tokens.response_ids


def _check_tokens(tokenizer: Any, samples: Sequence[Sample]) -> None:
    """Throws UsageError where ids say something else than the text beside them: they are of another
    tokenizer. Of a response that was not sampled in one piece the text may be a part only."""
    for sample in samples:
        if sample.tokens is None or not all(sample.tokens.response_mask):
            continue
        text = tokenizer.decode(sample.tokens.response_ids, skip_special_tokens=True)
        if text != sample.response:
            raise UsageError(
                f"{sample.name()}: response_ids are {text[:_SHOWN]!a} to this tokenizer, and the "
                f"response is {str(sample.response)[:_SHOWN]!a}. Set model.tokenizer to that of "
                "the run which wrote them, or leave the columns of ids out."
            )


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

    def keeps(
        self, sample: Sample | Pair, prompt: list[int], *answers: list[int], shortest: int = 2
    ) -> bool:
        """An answer of fewer than `shortest` tokens is empty: by default one of eos alone."""
        if not prompt or any(len(answer) < shortest for answer in answers):
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
