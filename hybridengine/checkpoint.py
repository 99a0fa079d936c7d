"""Checkpoint: a HF directory of safetensors files, read by header first and by slice on demand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Dict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridengine._core import UsageError

# What safetensors calls the types that the engine moves.
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}

_NAMES = {dtype: code for code, dtype in _DTYPES.items()}
_ITEM_BYTES = {
    dtype: 1 if code == "BOOL" else int(code.split("_")[0].lstrip("BFIU")) // 8
    for code, dtype in _DTYPES.items()
}

# safetensors' own limit; a longer header is no safetensors file.
_MAX_HEADER_BYTES = 100_000_000

TensorRow = tuple[str, tuple[int, ...], str]


def read_json(path: Path) -> dict[str, Any]:
    """Throws UsageError where the file is missing or no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}.") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds a {type(content).__name__}, not a JSON object.")
    return content


def checkpoint_files(directory: Path) -> list[Path]:
    """The safetensors files of a directory: those of the index, or the single one."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names = read_json(index).get("weight_map", {}).values()
        return [directory / name for name in sorted(set(names))]
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    raise UsageError(
        f"{directory} has neither model.safetensors nor model.safetensors.index.json. Name the "
        "directory of a checkpoint in safetensors format."
    )


def read_header(path: Path) -> list[TensorRow]:
    """(name, shape, dtype) of each tensor of a file. Reads the header only.

    Throws UsageError on a file that is missing, cut short or of another format.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(_MAX_HEADER_BYTES, size - 8):
                raise UsageError(f"{path} is no safetensors file or is cut short: {size} bytes.")
            header = json.loads(file.read(length))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path} is no safetensors file: its header is no JSON.") from error
    rows: list[TensorRow] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _DTYPES:
            raise UsageError(
                f"{name!r} in {path} has type {entry['dtype']}. Use {', '.join(_DTYPES)}."
            )
        if entry["data_offsets"][1] > size - 8 - length:
            raise UsageError(f"{path} is cut short: {name!r} ends beyond its {size} bytes.")
        rows.append((name, tuple(entry["shape"]), _DTYPES[entry["dtype"]]))
    return rows


def write_bfloat16(path: Path, tensors: Dict[str, npt.NDArray[np.uint16]]) -> None:
    """Writes tensors given by their bfloat16 bits as a safetensors file that transformers reads."""
    rows = [(name, bits.shape, "bfloat16") for name, bits in tensors.items()]
    _write_file(path, rows, (bits.astype("<u2") for bits in tensors.values()))


def write_checkpoint(
    directory: Path,
    rows: Sequence[TensorRow],
    tensors: Iterator[npt.NDArray[Any]],
    file_bytes: int = 5 * 10**9,
) -> None:
    """Writes safetensors files, with an index where they are several, as HF directories have them.

    `rows` tell all tensors, whose contiguous bytes are taken from `tensors` one at a time, when
    each is written. A file holds at most `file_bytes` of them, or one tensor.
    """
    groups: list[list[TensorRow]] = []
    room = 0
    for row in rows:
        if not groups or num_bytes(row) > room:
            groups.append([])
            room = file_bytes
        groups[-1].append(row)
        room -= num_bytes(row)
    total = len(groups)
    names = [f"model-{part:05d}-of-{total:05d}.safetensors" for part in range(1, total + 1)]
    if total == 1:
        names = ["model.safetensors"]
    for name, group in zip(names, groups, strict=True):
        _write_file(directory / name, group, tensors)
    if total > 1:
        index = {
            "metadata": {"total_size": sum(map(num_bytes, rows))},
            "weight_map": {
                row[0]: name for name, group in zip(names, groups, strict=True) for row in group
            },
        }
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def num_bytes(row: TensorRow) -> int:
    """What a file holds of it."""
    return math.prod(row[1]) * _ITEM_BYTES[row[2]]


def _write_file(path: Path, rows: Sequence[TensorRow], tensors: Iterator[npt.NDArray[Any]]) -> None:
    """Takes as many of `tensors` as there are rows."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for row in rows:
        begin, end = end, end + num_bytes(row)
        facts = {"dtype": _NAMES[row[2]], "shape": row[1], "data_offsets": [begin, end]}
        header[row[0]] = facts
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data begins aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in rows:
            file.write(next(tensors).data)


class Checkpoint:
    """The weights of a HF directory, by logical name, read when asked for.

    Files are mapped, not loaded: a slice reads only its own pages. Tensors are torch's, on the CPU.
    """

    def __init__(self, directory: Path, aliases: Sequence[tuple[str, str]] = ()) -> None:
        """Throws UsageError on a file that cannot be read."""
        self._file_of: dict[str, Path] = {}
        self.rows: dict[str, tuple[tuple[int, ...], str]] = {}  # shape and dtype, by name
        for path in checkpoint_files(directory):
            for name, shape, dtype in read_header(path):
                self._file_of[name], self.rows[name] = path, (shape, dtype)
        self._aliases = dict(aliases)
        self._open: dict[Path, Any] = {}

    @property
    def names(self) -> list[str]:
        return list(self._file_of)

    def tensor(self, name: str) -> Any:
        """The whole tensor."""
        stored, file = self._find(name)
        return file.get_tensor(stored)

    def slice(self, name: str, start: Sequence[int], size: Sequence[int]) -> Any:
        """The part of the tensor in the box that begins at `start`."""
        stored, file = self._find(name)
        if not start:
            return file.get_tensor(stored)
        box = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
        return file.get_slice(stored)[box]

    def _find(self, name: str) -> tuple[str, Any]:
        stored = name if name in self._file_of else self._aliases.get(name, name)
        if stored not in self._file_of:
            raise UsageError(f"the checkpoint has no tensor {name!r}. See names.")
        path = self._file_of[stored]
        if path not in self._open:
            from safetensors import safe_open

            self._open[path] = safe_open(path, framework="pt")
        return stored, self._open[path]
