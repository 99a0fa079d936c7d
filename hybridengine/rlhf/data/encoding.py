"""encoding: prompts as token ids, with the chat template where one is asked for, and length limits.

A template writes the special tokens that it wants; other text gets those that the tokenizer puts
before a text, and none behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.config.schema import Data
from hybridengine.rlhf.data.samples import Message, Pair, Sample

# Some file of every kind of tokenizer.
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges*", "*.model", "*.tiktoken", "tekken.json")

# Prompts that go to the tokenizer in one call: enough for its threads, little memory.
_CALL_ROWS = 1024


@dataclass(frozen=True)
class Counts:
    """What became of the samples: `read` = kept + too_long + empty."""

    read: int
    kept: int
    too_long: int
    empty: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.read + other.read,
            self.kept + other.kept,
            self.too_long + other.too_long,
            self.empty + other.empty,
        )

    def refuse_none(self, limits: str) -> None:
        """Throws UsageError, which names the keys of the `limits`, where nothing was kept."""
        if self.kept == 0:
            raise UsageError(
                f"no sample is left: {self.read} were read, {self.too_long} are too long and "
                f"{self.empty} empty. Raise {limits}, or mend the data."
            )


@dataclass(frozen=True)
class Encoded:
    """A sample, its prompt as token ids, and the text that they are the ids of."""

    sample: Sample
    ids: list[int]
    text: str


def load_tokenizer(path: str | Path, chat_template: str | Path | None = None) -> Any:
    """The transformers tokenizer in the directory `path`, with the template in a file if given.

    A tokenizer without a padding token pads with its end-of-sequence token. Throws UsageError for
    one that does not load or has no end-of-sequence token.
    """
    tokenizer = _load(path)
    if tokenizer.eos_token_id is None:
        raise UsageError(
            f"{path}: the tokenizer has no eos_token, so no response could end. "
            f"Name one in its tokenizer_config.json."
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if chat_template is not None:
        tokenizer.chat_template = _read_template(Path(chat_template))
    return tokenizer


def load_vocabulary(path: str | Path) -> dict[str, int] | None:
    """The id of every token of the tokenizer in the directory `path`; None where there is none.
    Throws UsageError for one that does not load."""
    if not _has_tokenizer(path):
        return None
    found: dict[str, int] = _load(path).get_vocab()
    return found


def _has_tokenizer(path: str | Path) -> bool:
    return any(file for pattern in _TOKENIZER_FILES for file in Path(path).glob(pattern))


def _load(path: str | Path) -> Any:
    from transformers import AutoTokenizer

    if not Path(path).is_dir():
        raise UsageError(f"there is no directory {str(path)!r} with a tokenizer. Mend the path.")
    if not _has_tokenizer(path):
        raise _without_tokenizer(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UsageError(
            f"{path}: the tokenizer does not load: {reason} "
            f"Set model.tokenizer to a directory with tokenizer.json and tokenizer_config.json."
        ) from error
    # Some kinds load without their files: they know one token then, and make none of any text.
    if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) < 2:
        raise _without_tokenizer(path)
    return tokenizer


class PromptEncoder:
    """Makes token ids of prompts, all in the same way."""

    def __init__(
        self,
        tokenizer: Any,
        max_prompt_length: int,
        apply_chat_template: str = "auto",
        overlong: str = "filter",
    ) -> None:
        """`apply_chat_template`: "auto" to lists of messages, "always" also to text, as one message
        of the user, "never". `overlong`: leave out prompts of more tokens, or refuse them."""
        self.tokenizer = tokenizer
        self.max_prompt_length = max_prompt_length
        self._apply, self._overlong = apply_chat_template, overlong
        self._appends_eos = self._ids(["a"], True)[0][-1:] == [tokenizer.eos_token_id]

    @staticmethod
    def of(tokenizer: Any, data: Data) -> PromptEncoder:
        """As the section data of the config says."""
        return PromptEncoder(
            tokenizer, data.max_prompt_length, data.apply_chat_template, data.overlong_prompts
        )

    def encode(self, samples: Sequence[Sample]) -> tuple[list[Encoded], Counts]:
        """The samples with a prompt of 1 to `max_prompt_length` tokens, in their order.

        Throws UsageError where none is kept, for a prompt too long unless they are filtered, and
        for messages without a chat template.
        """
        kept: list[Encoded] = []
        too_long = empty = 0
        for start in range(0, len(samples), _CALL_ROWS):
            some = samples[start : start + _CALL_ROWS]
            for sample, (ids, text) in zip(some, self.encode_prompts(some), strict=True):
                if not ids:
                    empty += 1
                elif self.is_overlong(sample, ids):
                    too_long += 1
                else:
                    kept.append(Encoded(sample, ids, text))
        counts = Counts(len(samples), len(kept), too_long, empty)
        counts.refuse_none(f"data.max_prompt_length ({self.max_prompt_length} tokens)")
        return kept, counts

    def encode_prompts(self, samples: Sequence[Sample | Pair]) -> list[tuple[list[int], str]]:
        """Ids and text of the prompts of samples or pairs, of whatever length."""
        texts, templated = [], []
        for sample in samples:
            text, by_template = self._text(sample)
            texts.append(text)
            templated.append(by_template)
        plain = iter(self._ids([t for t, by in zip(texts, templated, strict=True) if not by], True))
        other = iter(self._ids([t for t, by in zip(texts, templated, strict=True) if by], False))
        rows = [next(other) if by else self._bare(next(plain)) for by in templated]
        return [(ids if text else [], text) for ids, text in zip(rows, texts, strict=True)]

    def encode_answers(
        self, texts: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[list[int]]:
        """Ids of texts that follow a prompt: no special tokens but eos, which ends each that was
        not `truncated`."""
        eos = self.tokenizer.eos_token_id
        cut = [False] * len(texts) if truncated is None else truncated
        rows = self._ids(texts, special=False)
        return [
            ids if open_ended or ids[-1:] == [eos] else [*ids, eos]
            for ids, open_ended in zip(rows, cut, strict=True)
        ]

    def is_overlong(self, sample: Sample | Pair, ids: Sequence[int]) -> bool:
        """Whether a prompt is to be left out. Throws UsageError where overlong is "error"."""
        if len(ids) <= self.max_prompt_length:
            return False
        if self._overlong == "error":
            raise UsageError(
                f"the prompt of {sample.name()} has {len(ids)} tokens, of at most "
                f"{self.max_prompt_length}. Raise data.max_prompt_length or set "
                f"data.overlong_prompts=filter."
            )
        return True

    def _text(self, sample: Sample | Pair) -> tuple[str, bool]:
        """The text of a prompt, and whether a template wrote it."""
        prompt = sample.prompt
        if isinstance(prompt, str):
            if self._apply != "always" or not prompt:
                return prompt, False
            prompt = [{"role": "user", "content": prompt}]
        elif self._apply == "never":
            raise UsageError(
                f"the prompt of {sample.name()} is a list of messages, and "
                f"data.apply_chat_template=never. Set it to auto."
            )
        return self._apply_template(sample.name(), prompt), True

    def _apply_template(self, name: str, chat: list[Message]) -> str:
        from jinja2 import TemplateError

        if not self.tokenizer.chat_template:
            raise UsageError(
                f"{name} needs a chat template, and the tokenizer has none. Set "
                f"model.chat_template to a file with one, or data.apply_chat_template=never for "
                f"prompts that are text."
            )
        try:
            text = self.tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, TypeError, KeyError) as error:
            raise UsageError(
                f"the chat template refuses the messages of {name}: {error}. "
                f"Mend the messages, or set model.chat_template to another."
            ) from error
        return str(text)

    def _ids(self, texts: Sequence[str], special: bool) -> list[list[int]]:
        if not texts:
            return []
        rows: list[list[int]] = self.tokenizer(
            list(texts), add_special_tokens=special, return_attention_mask=False
        )["input_ids"]
        return rows

    def _bare(self, ids: list[int]) -> list[int]:
        """Ids of plain text without an eos that the tokenizer put behind it, and without a second
        bos where the text itself begins with one."""
        bos = self.tokenizer.bos_token_id
        if self._appends_eos:
            ids = ids[:-1]
        return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids


def _without_tokenizer(path: str | Path) -> UsageError:
    return UsageError(
        f"{path} has no tokenizer (no tokenizer.json, tokenizer.model or vocab.json). Set "
        "model.tokenizer to a directory with one."
    )


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"model.chat_template: {path} cannot be read: {error}. Name a text file."
        ) from error
