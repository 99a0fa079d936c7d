"""Prompts and answers as token ids: templates, special tokens, limits; the character tokenizer."""

import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hybridengine import UsageError
from hybridengine.rlhf.data import (
    Counts,
    Pair,
    PromptEncoder,
    Sample,
    character_tokenizer,
    encode_pairs,
    encode_preferences,
    load_tokenizer,
)

pytestmark = pytest.mark.python

PAD, BOS, EOS = 0, 1, 2

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "[{{ m.role }}:{{ m.content }}]{% endfor %}{% if add_generation_prompt %}[assistant:{% endif %}"
)


def sample(prompt: Any, response: str | None = None, index: int = 0) -> Sample:
    return Sample(index, prompt, response, None, "source", None)


def codes(text: str) -> list[int]:
    return [ord(character) for character in text]


def adding_tokenizer() -> Any:
    """Characters, with bos before and eos behind a text as some tokenizers add them."""
    tokenizer = character_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", BOS), ("<eos>", EOS)]
    )
    return tokenizer


def chat_tokenizer() -> Any:
    tokenizer = adding_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def word_tokenizer() -> Any:
    """ "ab" is one token, and so is each of its letters."""
    merged = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "<eos>": 3}, merges=[("a", "b")]))
    return PreTrainedTokenizerFast(tokenizer_object=merged, eos_token="<eos>")


TOKENIZER = character_tokenizer()


@given(
    st.text(string.ascii_letters + string.digits + string.punctuation + " \n\t").filter(
        lambda text: not any(token in text for token in TOKENIZER.all_special_tokens)
    )
)
def test_characters_there_and_back(text: str) -> None:
    tokenizer = TOKENIZER
    assert tokenizer.encode(text) == codes(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_character_tokenizer_saves_and_loads(tmp_path: Path) -> None:
    made = character_tokenizer(130)
    made.save_pretrained(tmp_path)
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)):
        assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id) == (PAD, BOS, EOS)
        assert len(loaded) == 130
        text = " 1 + 1 = 2 , ok ?\n\t'"
        assert loaded.encode(text) == codes(text)
        assert loaded.decode(loaded.encode(text)) == text
        assert loaded.batch_decode([[*codes("12"), EOS, PAD]], skip_special_tokens=True) == ["12"]
        assert loaded.encode("é") == [3, 3]
    with pytest.raises(UsageError, match="a vocabulary of 100 has no room"):
        character_tokenizer(100)


def test_text_gets_bos_and_no_eos() -> None:
    for tokenizer, start in ((adding_tokenizer(), [BOS]), (character_tokenizer(), [])):
        (one, two), counts = PromptEncoder(tokenizer, 10).encode([sample("1+1"), sample("2<eos>")])
        assert one.ids == [*start, *codes("1+1")] and one.text == "1+1"
        assert two.ids == [*start, *codes("2"), EOS]  # its own
        assert counts == Counts(read=2, kept=2, too_long=0, empty=0)


def test_a_text_that_begins_with_bos_has_one() -> None:
    (one,), _ = PromptEncoder(adding_tokenizer(), 10).encode([sample("<bos>1")])
    assert one.ids == [BOS, *codes("1")]


def test_a_template_writes_its_own_special_tokens() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    (one, two), _ = PromptEncoder(chat_tokenizer(), 99).encode([sample(messages), sample("plain")])
    assert one.text == "<bos>[system:s][user:u][assistant:"
    assert one.ids == [BOS, *codes("[system:s][user:u][assistant:")]
    assert two.ids == [BOS, *codes("plain")]
    encoder = PromptEncoder(chat_tokenizer(), 99, apply_chat_template="always")
    (one, two), _ = encoder.encode([sample(messages), sample("plain")])
    assert one.ids == [BOS, *codes("[system:s][user:u][assistant:")]
    assert two.ids == [BOS, *codes("[user:plain][assistant:")]


def test_prompts_that_a_template_cannot_take() -> None:
    messages = [{"role": "user", "content": "u"}]
    with pytest.raises(UsageError, match=r"sample 3 needs a chat template.*model\.chat_template"):
        PromptEncoder(character_tokenizer(), 9).encode([sample(messages, index=3)])
    with pytest.raises(UsageError, match=r"sample 3 is a list of messages, and data\.apply_chat"):
        PromptEncoder(chat_tokenizer(), 9, "never").encode([sample(messages, index=3)])
    tool = [{"role": "tool", "content": "u"}]
    with pytest.raises(UsageError, match="refuses the messages of sample 3: no tools"):
        PromptEncoder(chat_tokenizer(), 9).encode([sample(tool, index=3)])


def test_long_and_empty_prompts_are_counted() -> None:
    prompts = ["12345", "123456", "", "1"]
    samples = [sample(prompt, index=i) for i, prompt in enumerate(prompts)]
    kept, counts = PromptEncoder(character_tokenizer(), 5).encode(samples)
    assert [(one.sample.index, one.text) for one in kept] == [(0, "12345"), (3, "1")]
    assert counts == Counts(read=4, kept=2, too_long=1, empty=1)
    strict = PromptEncoder(character_tokenizer(), 5, overlong="error")
    with pytest.raises(UsageError, match=r"of sample 1 has 6 tokens, of at most 5"):
        strict.encode(samples)
    with pytest.raises(UsageError, match="no sample is left: 2 were read, 1 are too long and 1 em"):
        PromptEncoder(character_tokenizer(), 5).encode(samples[1:3])
    with pytest.raises(UsageError, match="no sample is left: 0 were read"):
        PromptEncoder(character_tokenizer(), 5).encode([])
    always = PromptEncoder(chat_tokenizer(), 99, apply_chat_template="always")
    assert always.encode(samples)[1] == Counts(read=4, kept=3, too_long=0, empty=1)


def test_more_prompts_than_one_call_of_the_tokenizer_takes() -> None:
    samples = [sample(str(i), index=i) for i in range(2500)]
    kept, counts = PromptEncoder(character_tokenizer(), 3).encode(samples)
    assert [one.ids for one in kept] == [codes(str(i)) for i in range(1000)]
    assert counts == Counts(2500, 1000, 1500, 0)


def test_an_answer_is_joined_without_merging_and_ends_with_eos_once() -> None:
    encoder = PromptEncoder(word_tokenizer(), 9)
    assert word_tokenizer()("ab")["input_ids"] == [2]
    kept, counts = encode_pairs(encoder, [sample("a", "b"), sample("ab", "ab<eos>")], 9)
    assert [(one.ids, one.prompt_length) for one in kept] == [([0, 1, 3], 1), ([2, 2, 3], 1)]
    assert counts == Counts(2, 2, 0, 0)


def test_answers_have_a_limit_that_eos_counts_in() -> None:
    encoder = PromptEncoder(adding_tokenizer(), 4)
    samples = [sample("1", "22"), sample("1", "333"), sample("1234", "2"), sample("1", "")]
    kept, counts = encode_pairs(encoder, samples, max_response_length=3)
    assert [(one.ids, one.prompt_length) for one in kept] == [([BOS, *codes("122"), EOS], 2)]
    assert counts == Counts(read=4, kept=1, too_long=2, empty=1)
    with pytest.raises(UsageError, match=r"sample 0 .* has no response to learn from"):
        encode_pairs(encoder, [sample("1")], 3)
    with pytest.raises(UsageError, match=r"Raise .* or data\.max_response_length \(3 tokens\), or"):
        encode_pairs(encoder, samples[1:2], 3)
    strict = PromptEncoder(adding_tokenizer(), 4, overlong="error")
    with pytest.raises(UsageError, match="of sample 0 has 5 tokens, of at most 4"):
        encode_pairs(strict, samples[2:3], 3)


def test_preferences_share_their_prompt() -> None:
    encoder = PromptEncoder(chat_tokenizer(), 40)
    chat = [{"role": "user", "content": "u"}]
    pairs = [Pair(0, chat, "4", "55"), Pair(1, "1+1=", "2", "3"), Pair(2, "1+1=", "2", "33333")]
    kept, counts = encode_preferences(encoder, pairs, 4)
    first = [BOS, *codes("[user:u][assistant:")]
    assert kept[0].chosen_ids == [*first, *codes("4"), EOS]
    assert kept[0].rejected_ids == [*first, *codes("55"), EOS]
    assert kept[0].prompt_length == len(first) and kept[0].pair == pairs[0]
    assert kept[1].chosen_ids == [BOS, *codes("1+1=2"), EOS] and kept[1].prompt_length == 5
    assert counts == Counts(read=3, kept=2, too_long=1, empty=0)


def test_what_is_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no directory '/nowhere' with a tokenizer"):
        load_tokenizer("/nowhere")
    with pytest.raises(UsageError, match=r"has no tokenizer \(no tokenizer.json.*model\.tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match=r"the tokenizer does not load: .*model\.tokenizer"):
        load_tokenizer(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.pad_token_id == loaded.eos_token_id == 3
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UsageError, match="has no eos_token, so no response could end"):
        load_tokenizer(tmp_path)


def test_a_chat_template_of_ones_own(tmp_path: Path) -> None:
    character_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    tokenizer = load_tokenizer(tmp_path, tmp_path / "chat.jinja")
    (one,), _ = PromptEncoder(tokenizer, 50, "always").encode([sample("u")])
    assert one.ids == [BOS, *codes("[user:u][assistant:")]
    with pytest.raises(UsageError, match=r"model\.chat_template: .*nothing cannot be read"):
        load_tokenizer(tmp_path, tmp_path / "nothing")
