"""files: samples and pairs out of rows, by the columns that the config names.

A column under its default name may be missing where a sample can do without it (ground_truth,
data_source, extra; response online); one that the config names otherwise must be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.config.schema import Data
from hybridengine.rlhf.data.messages import prompt_of_row, text_of_row
from hybridengine.rlhf.data.preferences import pair_of_row
from hybridengine.rlhf.data.records import Row, missing_column, read_rows
from hybridengine.rlhf.data.rollout_rows import tokens_of_row, truncated_of_row
from hybridengine.rlhf.data.samples import Pair, Sample

# Keys of the columns of a sample.
_READ = ("prompt_key", "response_key", "ground_truth_key", "data_source_key", "extra_key")
_DEFAULTS = {name: field.default for name, field in Data.model_fields.items()}


def read_files(paths: Sequence[str | Path], data: Data) -> list[Sample]:
    """The samples of all files, in order.

    Besides the columns that `data` names, two others of verl's files are read where those are
    missing: `reward_model`, whose `ground_truth` is taken, and `extra_info` for extra. A
    data_source that no column gives is the file's name without suffix. Columns of tokens are read
    too; see rollout_rows.py.

    Throws UsageError that names file, row and column: a file that is missing, malformed or empty, a
    missing column, a value of a wrong type.
    """
    rows = _rows(paths)
    required = [data.prompt_key]
    if data.mode == "offline":
        required.append(data.response_key)
    for key in ("response_key", "ground_truth_key", "data_source_key", "extra_key"):
        if getattr(data, key) != _DEFAULTS[key]:
            required.append(getattr(data, key))
    _require(rows, required, data)
    return [_sample(index, row, data, required) for index, row in enumerate(rows)]


def read_pairs(paths: Sequence[str | Path], data: Data) -> list[Pair]:
    """The preference pairs of all files, in order; see preferences.py for their shapes.

    Throws UsageError as `read_files` does, and for a pair that shares no prompt.
    """
    rows = _rows(paths)
    required = [data.chosen_key, data.rejected_key]
    if data.prompt_key != _DEFAULTS["prompt_key"]:
        required.append(data.prompt_key)
    _require(rows, required, data)
    return [pair_of_row(index, row, data) for index, row in enumerate(rows)]


def _rows(paths: Sequence[str | Path]) -> list[Row]:
    rows = list(read_rows(paths))
    if not rows:
        raise UsageError("no files are named. Give data.train_files one or more.")
    return rows


def _require(rows: Sequence[Row], columns: Sequence[str], data: Data) -> None:
    """Each file must have the columns, in some row at least; rows are checked one by one later."""
    by_file: dict[Path, list[Row]] = {}
    for row in rows:
        by_file.setdefault(row.path, []).append(row)
    for column in columns:
        for group in by_file.values():
            if not any(column in row.values for row in group):
                raise missing_column(group, column, f"data.{_key_of(column, data)}")


def _key_of(column: str, data: Data) -> str:
    """The key of the config whose value is `column`."""
    return next(key for key in _DEFAULTS if key.endswith("_key") and getattr(data, key) == column)


def _sample(index: int, row: Row, data: Data, required: Sequence[str]) -> Sample:
    row.check_text((*(getattr(data, key) for key in _READ), "reward_model", "extra_info"))
    response = None
    if data.response_key in required or row.values.get(data.response_key) is not None:
        response = text_of_row(row, data.response_key)
    return Sample(
        index=index,
        prompt=prompt_of_row(row, data.prompt_key),
        response=response,
        ground_truth=_ground_truth(row, data.ground_truth_key, required),
        data_source=_data_source(row, data.data_source_key),
        extra=row.values.get(data.extra_key, row.values.get("extra_info")),
        truncated=truncated_of_row(row),
        tokens=tokens_of_row(row),
        where=row.where(),
    )


def _ground_truth(row: Row, column: str, required: Sequence[str]) -> Any:
    found = row.values.get(column)
    if found is None:
        nested = row.values.get("reward_model")
        found = nested.get("ground_truth") if isinstance(nested, dict) else None
    if found is None and column in required:
        row.refuse(column, "is missing or null", "Give every row one.")
    return found


def _data_source(row: Row, column: str) -> str:
    if row.values.get(column) is None:
        return row.path.name.split(".")[0]
    return text_of_row(row, column)
