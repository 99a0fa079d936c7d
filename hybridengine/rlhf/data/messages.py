"""messages: a row's prompt, messages and texts, typed. Not templates; see encoding.py."""

from __future__ import annotations

from typing import Any

from hybridengine.rlhf.data.records import Row
from hybridengine.rlhf.data.samples import Message

_TEXT_OR_MESSAGES = "Give text, or a list of chat messages {role, content}."


def text_of_row(row: Row, column: str) -> str:
    """Throws UsageError unless the column holds text."""
    value = row.values.get(column)
    if not isinstance(value, str):
        row.refuse(column, f"holds {describe(value)}, not text", "Give every row text.")
    return value


def prompt_of_row(row: Row, column: str) -> str | list[Message]:
    """Throws UsageError unless the column holds text or a list of one message or more."""
    value = row.values.get(column)
    if isinstance(value, str):
        return value
    return messages_of_row(row, column)


def messages_of_row(row: Row, column: str) -> list[Message]:
    """The messages, without the keys that are null because another row of the file has them."""
    value = row.values.get(column)
    if not isinstance(value, list) or not value:
        row.refuse(column, f"holds {describe(value)}, no prompt", _TEXT_OR_MESSAGES)
    for position, message in enumerate(value):
        if not isinstance(message, dict):
            what = f"holds {describe(message)} as message {position}"
            row.refuse(column, what, _TEXT_OR_MESSAGES)
        for part in ("role", "content"):
            if not isinstance(message.get(part), str):
                what = f"holds {describe(message.get(part))} as {part!r} of message {position}"
                row.refuse(column, what, _TEXT_OR_MESSAGES)
    return [{k: v for k, v in message.items() if v is not None} for message in value]


def describe(value: Any) -> str:
    """A value's type, as an error names it."""
    if value is None:
        return "nothing"
    if isinstance(value, list) and not value:
        return "an empty list"
    return f"a value of type {type(value).__name__}"
