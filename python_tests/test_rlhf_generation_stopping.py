"""Stop texts: found as soon as they are complete, across tokens and within them."""

from __future__ import annotations

from typing import Any

import pytest
from generation_models import VOCAB, engine, make_model, prompts

from hybridengine import UsageError
from hybridengine.rlhf.generation import SamplingParams, generate
from hybridengine.rlhf.generation.stopping import StopTexts

pytestmark = pytest.mark.python


class ByteTokenizer:
    """Token t is `pieces[t]`, bytes that need not be whole characters."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def decode(self, ids: list[int], **options: Any) -> str:
        assert options["skip_special_tokens"] is False
        return b"".join(self.pieces[token] for token in ids).decode(errors="replace")


class WordTokenizer:
    """Words, with a space before each but the first one decoded, as SentencePiece does."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def decode(self, ids: list[int], **options: Any) -> str:
        return " ".join(self.words[token] for token in ids)


def end(tokenizer: Any, tokens: list[int], *stops: str) -> int | None:
    """The number of tokens after which one of `stops` is complete."""
    texts = StopTexts(tokenizer, stops)
    return next((n for n, token in enumerate(tokens, 1) if texts.completes(0, token)), None)


def test_a_stop_text_may_cross_tokens_and_lie_within_one() -> None:
    tokenizer = ByteTokenizer([b"ab", b"c", b"xcabcx", b"", b"a"])
    assert end(tokenizer, [4, 0, 1], "abc") == 3
    assert end(tokenizer, [0, 3, 3, 1], "abc") == 4
    assert end(tokenizer, [1, 2, 1], "abc") == 2
    assert end(tokenizer, [0, 4, 1], "abc") is None
    assert end(tokenizer, [1, 0, 1], "zz", "ca") == 2
    assert end(tokenizer, [4, 4], "a") == 1


def test_a_stop_text_longer_than_what_is_kept() -> None:
    tokenizer = ByteTokenizer([b"a", b"b"])
    assert end(tokenizer, [0, 1, 0, 0, 1, 0, 0, 1], "aabaab") == 8


def test_characters_of_several_tokens() -> None:
    euro = "€".encode()
    tokenizer = ByteTokenizer([euro[:1], euro[1:2], euro[2:], b"a", b"a" + euro[:1]])
    assert end(tokenizer, [3, 0, 1, 2, 3], "€") == 4
    assert end(tokenizer, [0, 1, 2, 0, 1, 2, 3], "€€a") == 7
    assert end(tokenizer, [3, 4, 1, 2], "aa") == 2  # complete before a character that is not


def test_spaces_between_words() -> None:
    tokenizer = WordTokenizer(["the", "end", "is"])
    assert end(tokenizer, [0, 1, 2], "end is") == 3
    assert end(tokenizer, [0, 1, 2], "theend") is None
    assert end(tokenizer, [0, 1, 2], " ") == 2


def test_every_response_has_a_text_of_its_own() -> None:
    texts = StopTexts(ByteTokenizer([b"a", b"b"]), ("ab",))
    assert not texts.completes(0, 0)
    assert not texts.completes(1, 1)
    assert texts.completes(0, 1)


@pytest.mark.parametrize("slots", [1, 3, 6])
def test_responses_end_with_the_token_that_completes_it(slots: int) -> None:
    model = make_model()
    tokenizer = ByteTokenizer([bytes([97 + token % 5]) for token in range(VOCAB)])
    generator = engine(model, slots, tokenizer=tokenizer)
    plain = SamplingParams(max_tokens=30, seed=1)
    free = generate(generator, prompts(6), plain, range(6))
    stopping = SamplingParams(max_tokens=30, seed=1, stop=("ab", "dd"))
    found = generate(generator, prompts(6), stopping, range(6))
    cut = 0
    for whole, response in zip(free, found, strict=True):
        text = tokenizer.decode(whole.ids, skip_special_tokens=False)
        ends = [text.find(stop) + 2 for stop in ("ab", "dd") if stop in text]
        expected = min([*ends, len(text)])
        assert response.ids == whole.ids[:expected]
        assert response.log_probs == pytest.approx(whole.log_probs[:expected], abs=1e-6)
        assert response.finish_reason == ("stop" if ends else whole.finish_reason)
        cut += bool(ends)
    assert cut >= 2


def test_a_stop_text_within_min_tokens_is_no_end() -> None:
    tokenizer = ByteTokenizer([bytes([97 + token % 5]) for token in range(VOCAB)])
    generator = engine(make_model(), tokenizer=tokenizer)
    params = SamplingParams(max_tokens=30, min_tokens=9, seed=1, stop=("a", "d"), ignore_eos=True)
    free = generate(generator, prompts(6), SamplingParams(30, seed=1, ignore_eos=True), range(6))
    found = generate(generator, prompts(6), params, range(6))
    for whole, response in zip(free, found, strict=True):
        text = tokenizer.decode(whole.ids, skip_special_tokens=False)
        ends = [place for place, letter in enumerate(text) if letter in "ad" and place >= 9]
        assert response.ids == whole.ids[: min([*ends, 29]) + 1]


def test_stop_texts_need_a_tokenizer() -> None:
    with pytest.raises(UsageError, match=r"'x' need the text of tokens.*tokenizer="):
        generate(engine(make_model()), [[3]], SamplingParams(max_tokens=1, stop=("x",)), [0])
