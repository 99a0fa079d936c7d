"""records: rows out of parquet, JSON lines and saved HF datasets. Not what their columns mean.

A path may be a file, a directory, a pattern with * in it, or a dataset of the Hugging Face hub; or
path.py:name, a function that yields dicts.
"""

from __future__ import annotations

import glob
import gzip
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hybridengine._core import UsageError
from hybridengine.rlhf.hub import HubId, dataset_snapshot
from hybridengine.rlhf.plugins import load_plugin
from hybridengine.wording import kind_of, nearest

_JSON_SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")

# How files of a HF dataset are named: train-00000-of-00003.parquet.
_SHARD = re.compile(r"(?P<split>.+)-\d+-of-\d+$")
_SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")


@dataclass(frozen=True)
class Row:
    """One record. `position`: the line of a JSON file from 1, the row of another from 0."""

    path: Path
    position: int
    values: dict[str, Any]

    def where(self) -> str:
        """`train.jsonl:12`, or `train.parquet, row 12`, for errors."""
        if self.path.name.endswith(_JSON_SUFFIXES):
            return f"{self.path}:{self.position}"
        return f"{self.path}, row {self.position}"

    def refuse(self, column: str, what: str, mend: str) -> NoReturn:
        raise UsageError(f"{self.where()}: column {column!r} {what}. {mend}")

    def check_text(self, columns: Iterable[str]) -> None:
        """Throws UsageError where a text in one of them, at any depth, holds a lone surrogate: JSON
        can spell it, but no tokenizer and no file takes it."""
        for column in columns:
            for text in _texts(self.values.get(column)):
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    half = ascii(text[error.start])
                    what = f"holds half a character, {half}, at {error.start} of {text[:40]!a}"
                    self.refuse(column, what, "Write characters whole, or leave it out.")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def read_rows(paths: Sequence[str | Path]) -> Iterator[Row]:
    """Every record of every file, in order; files of a directory by name.

    Throws UsageError for a path that is missing, unknown or malformed, with the line of bad JSON.
    """
    for path in paths:
        sources = [str(path)] if ".py:" in str(path) else _files(str(path))
        for source in sources:
            empty = True
            for row in _made(source) if isinstance(source, str) else _read(source):
                empty = False
                yield row
            if empty:
                raise UsageError(f"{source} has no rows. Give one that has, or leave it out.")


def _made(reference: str) -> Iterator[Row]:
    """The rows that a function of the user's own yields: dicts, called with nothing."""
    make = load_plugin(reference, "data.train_files")
    try:
        for position, values in enumerate(make()):
            if not isinstance(values, dict):
                raise UsageError(
                    f"{reference}: row {position} is {kind_of(values)}. Yield a dict a row, with "
                    "the columns of a file."
                )
            yield Row(Path(reference.rpartition(":")[0]), position, values)
    except UsageError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise UsageError(f"{reference}: {type(error).__name__}: {error}. Mend the file.") from error


def missing_column(rows: Sequence[Row], column: str, key: str) -> UsageError:
    """The error for a column that no row has; `key` is the key of the config that names it."""
    known = list(dict.fromkeys(name for row in rows for name in row.values))
    return UsageError(
        f"{rows[0].path} has no column {column!r}: it has {', '.join(known) or 'none'}. "
        f"Set {key} to {nearest(column, known)}."
    )


def _files(path: str) -> list[Path]:
    """The files, or saved datasets' directories, that `path` stands for."""
    if Path(path).exists():
        return _files_of(Path(path))
    if glob.has_magic(path):
        matches = sorted(glob.glob(path, recursive=True))
        if matches:
            return [file for match in matches for file in _files_of(Path(match))]
    hub_id = HubId.parse(path)
    if hub_id is not None and (hub_id.pattern or not path.endswith((*_JSON_SUFFIXES, ".parquet"))):
        found = dataset_snapshot(hub_id)
        return _files(str(found if hub_id.pattern is None else found / hub_id.pattern))
    if glob.has_magic(path):
        raise UsageError(f"no file matches {path!r}. Mend the pattern, or the folder it is in.")
    raise UsageError(f"there is no file or directory {path!r}. Mend the path.")


def _files_of(path: Path) -> list[Path]:
    if path.is_file() or (path / "state.json").is_file():
        return [path]
    if (path / "dataset_dict.json").is_file():
        splits = sorted(str(entry) for entry in path.iterdir() if entry.is_dir())
        raise UsageError(f"{path} holds several splits. Name one of {', '.join(splits)}.")
    files = sorted(path.rglob("*.parquet"))
    if not files:
        files = sorted([*path.rglob("*.jsonl"), *path.rglob("*.jsonl.gz")])
    if not files:
        raise UsageError(
            f"{path} is no dataset: it holds neither state.json nor parquet or JSONL files. "
            f"Name the files, or a directory that save_to_disk wrote."
        )
    _refuse_several_splits(path, files)
    return files


def _refuse_several_splits(folder: Path, files: list[Path]) -> None:
    """A directory with train and test files is not read as one: tests would be trained on."""
    groups: dict[tuple[Path, str], Path] = {}
    for file in files:
        stem = file.name.split(".")[0]
        match = _SHARD.match(stem)
        split = match["split"] if match else stem if stem in _SPLITS else ""
        groups.setdefault((file.parent, split), file)
    if len(groups) > 1:
        raise UsageError(
            f"{folder} holds several splits or datasets: one has {next(iter(groups.values()))}, "
            f"another {list(groups.values())[1]}. Name the files of one; "
            f"a pattern such as {folder}/data/train-*.parquet will do."
        )


def _read(path: Path) -> Iterator[Row]:
    if path.is_dir():
        return _read_saved(path)
    if path.name.endswith(_JSON_SUFFIXES):
        return _read_json_lines(path)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    raise UsageError(
        f"{path} has a name that does not say what it is. "
        f"Name it .parquet, .jsonl or .json, or give a directory that save_to_disk wrote."
    )


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]
    from pyarrow import ArrowException

    try:
        table = parquet.ParquetFile(path).read()
    except (ArrowException, OSError) as error:
        raise UsageError(
            f"{path} cannot be read as parquet: {error}. Write or fetch it again."
        ) from error
    position = 0
    for batch in table.to_batches():
        for record in _records(path, position, batch):
            yield Row(path, position, record)
            position += 1


def _records(path: Path, first: int, batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch of pyarrow, of which the first is row `first` of the file."""
    try:
        records: list[dict[str, Any]] = batch.to_pylist()
        return records
    except UnicodeDecodeError:
        for row in range(batch.num_rows):
            try:
                batch.slice(row, 1).to_pylist()
            except UnicodeDecodeError as error:
                raise UsageError(
                    f"{path}, row {first + row}: not UTF-8: {error.reason}. Write it as UTF-8."
                ) from error
        raise


def _read_saved(path: Path) -> Iterator[Row]:
    from datasets import load_from_disk  # type: ignore[import-untyped]

    try:
        dataset = load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"{path} cannot be read as a saved dataset: {error}. Save it again with save_to_disk."
        ) from error
    for position, record in enumerate(dataset):
        yield Row(path, position, record)


def _read_json_lines(path: Path) -> Iterator[Row]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield Row(path, number, _record(f"{path}:{number}", line))
    except (OSError, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {error}. Write or fetch it again.") from error


def _record(where: str, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{where}: not JSON: {error.msg} at column {error.colno}. "
            f"Write one object a line, on one line."
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 at byte {error.start}. Write it as UTF-8.") from error
    except (ValueError, RecursionError) as error:  # a number or a nesting beyond Python's limits
        reason = str(error).split(";")[0]
        raise UsageError(f"{where}: cannot be read: {reason}. Write it smaller.") from error
    if not isinstance(record, dict):
        raise UsageError(
            f"{where}: a JSON {type(record).__name__}, not an object. Write one object a line."
        )
    return record
