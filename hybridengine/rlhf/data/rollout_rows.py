"""rollout_rows: the tokens of a sampled response as columns of a row, written and read.

Text alone is not what a policy sampled: tokenised again it may have other tokens, and it does not
tell whether it ended. With these columns an offline run trains on the very tokens.

    prompt_ids, response_ids   the ids, as they were fed and sampled
    response_mask              1 for a token that the policy chose, 0 for one that it was given
    log_probs                  of the policy that sampled, by token of the response
    truncated                  whether the response was cut, so that nothing ended it
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hybridengine.rlhf.data.messages import describe
from hybridengine.rlhf.data.records import Row
from hybridengine.rlhf.data.samples import Tokens

_IDS = ("prompt_ids", "response_ids")
_BY_TOKEN = ("response_mask", "log_probs")  # of the response
_WHOLE = "Write rows as a run with trainer.save_rollouts does, or leave the columns of tokens out."


def token_columns(tokens: Tokens) -> dict[str, Any]:
    return {
        "prompt_ids": tokens.prompt_ids,
        "response_ids": tokens.response_ids,
        "response_mask": [int(chosen) for chosen in tokens.response_mask],
        "log_probs": tokens.log_probs,
    }


def tokens_of_row(row: Row) -> Tokens | None:
    """None for a row without ids. Throws UsageError for one that has some of the columns only, or
    values that cannot be."""
    there = [name for name in (*_IDS, *_BY_TOKEN) if row.values.get(name) is not None]
    if not there:
        return None
    for name in _IDS:
        ids = row.values.get(name)
        if not isinstance(ids, list) or not ids or not all(_is_id(each) for each in ids):
            row.refuse(name, f"holds {describe(ids)}, no ids, beside {there[0]!r}", _WHOLE)
    prompt, response = (row.values[name] for name in _IDS)
    mask, log_probs = (_by_token(row, name, len(response)) for name in _BY_TOKEN)
    if mask is not None and not any(mask):
        row.refuse("response_mask", "is 0 throughout", "Leave the row out: nothing was chosen.")
    return Tokens(
        prompt_ids=prompt,
        response_ids=response,
        response_mask=[True] * len(response) if mask is None else [each != 0 for each in mask],
        log_probs=log_probs,
    )


def truncated_of_row(row: Row) -> bool:
    """False where the row does not say."""
    found = row.values.get("truncated")
    if found is not None and not isinstance(found, bool):
        row.refuse("truncated", f"holds {describe(found)}", "Give true or false.")
    return bool(found)


def drop_groups(folder: Path, first: int) -> None:
    """Takes the rows of `first` and later groups out of the files of a run, and a line that was cut
    while it was written: a run that goes on from before them samples them once more."""
    for path in sorted(folder.glob("*.jsonl")):
        scratch = path.with_suffix(".tmp")
        with path.open("rb") as old, scratch.open("wb") as new:
            new.writelines(line for line in old if _is_before(first, line))
        scratch.replace(path)


def _is_before(first: int, line: bytes) -> bool:
    return line.endswith(b"\n") and int(json.loads(line)["group"]) < first


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _by_token(row: Row, name: str, length: int) -> list[float] | None:
    """One number for each of the `length` tokens of the response; None where there are none."""
    found = row.values.get(name)
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(v, (int, float)) for v in found):
        row.refuse(name, f"holds {describe(found)}, not a number a token", _WHOLE)
    if len(found) != length or not all(map(math.isfinite, found)):
        what = f"has {len(found)} numbers, of which each is to be finite, for {length} response_ids"
        row.refuse(name, what, _WHOLE)
    return found
