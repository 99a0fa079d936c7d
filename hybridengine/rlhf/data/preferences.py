r"""preferences: two answers and their prompt out of a row, in the shapes that files have.

- Dialogs as text, both whole (HH-RLHF: "\n\nHuman: ...\n\nAssistant: ..."): the prompt is what they
  share, up to the last "\n\nAssistant:".
- Lists of chat messages, both whole: the prompt is all but the last message, which must be the
  assistant's; everything before it must be the same.
- A prompt in a column of its own: chosen and rejected are answers, or dialogs that begin with it.
"""

from __future__ import annotations

from hybridengine.rlhf.config.schema import Data
from hybridengine.rlhf.data.messages import describe, messages_of_row, prompt_of_row, text_of_row
from hybridengine.rlhf.data.records import Row
from hybridengine.rlhf.data.samples import Message, Pair

_TURN = "\n\nAssistant:"


def pair_of_row(index: int, row: Row, data: Data) -> Pair:
    """Throws UsageError for values of a wrong type and for answers without a common prompt."""
    row.check_text((data.prompt_key, data.chosen_key, data.rejected_key))
    chosen = row.values.get(data.chosen_key)
    if isinstance(chosen, list):
        return _of_messages(index, row, data)
    texts = text_of_row(row, data.chosen_key), text_of_row(row, data.rejected_key)
    if row.values.get(data.prompt_key) is None:
        return _of_dialogs(index, row, data, *texts)
    prompt = prompt_of_row(row, data.prompt_key)
    if isinstance(prompt, str) and all(text.startswith(prompt) for text in texts):
        texts = texts[0].removeprefix(prompt), texts[1].removeprefix(prompt)
    return Pair(index, prompt, *texts, where=row.where())


def _of_dialogs(index: int, row: Row, data: Data, chosen: str, rejected: str) -> Pair:
    shared = _common_prefix(chosen, rejected)
    turn = shared.rfind(_TURN)
    if turn < 0:
        row.refuse(
            data.chosen_key,
            f"shares no prompt with {data.rejected_key!r}: they differ after {len(shared)} "
            f"characters, before any {_TURN!r}",
            f"Give dialogs with a common beginning, or a column {data.prompt_key!r}.",
        )
    prompt = shared[: turn + len(_TURN)]
    answers = chosen.removeprefix(prompt), rejected.removeprefix(prompt)
    return Pair(index, prompt, *answers, where=row.where())


def _of_messages(index: int, row: Row, data: Data) -> Pair:
    chosen = messages_of_row(row, data.chosen_key)
    if not isinstance(row.values.get(data.rejected_key), list):
        what = f"holds {describe(row.values.get(data.rejected_key))}"
        row.refuse(data.rejected_key, what, "Give messages, as in the column of the chosen.")
    rejected = messages_of_row(row, data.rejected_key)
    for column, messages in ((data.chosen_key, chosen), (data.rejected_key, rejected)):
        if messages[-1]["role"] != "assistant":
            what = f"ends with a message of {messages[-1]['role']!r}"
            row.refuse(column, what, "End it with the assistant's answer.")
    if chosen[:-1] != rejected[:-1]:
        what = f"and {data.rejected_key!r} differ before their last messages"
        row.refuse(data.chosen_key, what, "Give both the same messages but for the last.")
    prompt: str | list[Message] = chosen[:-1]
    if not prompt:
        prompt = prompt_of_row(row, data.prompt_key)
    answers = chosen[-1]["content"], rejected[-1]["content"]
    return Pair(index, prompt, *answers, where=row.where())


def _common_prefix(a: str, b: str) -> str:
    pairs = enumerate(zip(a, b, strict=False))
    return a[: next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))]
