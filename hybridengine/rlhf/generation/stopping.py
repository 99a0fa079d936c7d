"""stopping: texts that end a response, looked for as its tokens arrive.

Tokens are no units of text: a stop text may begin within one token and end within another, and a
character may take several. So what a token adds is the difference of two decodings of the last few
tokens, and it counts as soon as it holds no broken character.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridengine._core import UsageError

_BROKEN = "\ufffd"  # stands for bytes that are no character yet


class StopTexts:
    """Looks for `stops` in many responses. `tokenizer` decodes as those of transformers do.

    Special tokens count with their text. Throws UsageError where there is no tokenizer.
    """

    def __init__(self, tokenizer: Any, stops: tuple[str, ...]) -> None:
        if tokenizer is None:
            raise UsageError(
                f"stop texts {', '.join(map(repr, stops))} need the text of tokens, and the engine "
                "has no tokenizer. Make the Engine with tokenizer=, or use stop_token_ids."
            )
        self._tokenizer, self._stops = tokenizer, stops
        self._keep = max(map(len, stops)) - 1
        self._responses: dict[int, _Text] = {}

    def completes(self, response: int, token: int) -> bool:
        """Whether `token`, the next one of `response`, completes a stop text."""
        text = self._responses.setdefault(response, _Text())
        added = text.add(token, self._decode)
        found = any(stop in added for stop in self._stops)
        text.trim(self._keep)
        return found

    def forget(self, response: int) -> None:
        """It has ended."""
        self._responses.pop(response, None)

    def _decode(self, ids: list[int]) -> str:
        decoded: str = self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return decoded


class _Text:
    """The end of one response: text that is certain, and the tokens that still matter.

    `_context` tokens of `_ids` are in the text already; they are decoded along, for how a token
    reads may depend on the one before.
    """

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._context = 0
        self._text = ""

    def add(self, token: int, decode: Callable[[list[int]], str]) -> str:
        """The end of the text with `token`, which may end in a broken character."""
        self._ids.append(token)
        before = len(decode(self._ids[: self._context]))
        added = decode(self._ids)[before:]
        end = self._text + added
        if added and not added.endswith(_BROKEN):
            self._text = end
            self._ids = self._ids[self._context :]
            self._context = len(self._ids)
        return end

    def trim(self, length: int) -> None:
        """Only this many characters can still be the beginning of a stop text."""
        self._text = self._text[max(0, len(self._text) - length) :]
