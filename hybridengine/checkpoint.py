"""Checkpoint: a HF directory of safetensors files, read by header first and by slice on demand."""

from __future__ import annotations

import json
from collections.abc import Mapping as Dict
from collections.abc import Sequence
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
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, bits in tensors.items():
        begin, end = end, end + bits.nbytes
        header[name] = {"dtype": "BF16", "shape": bits.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data begins aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for bits in tensors.values():
            file.write(bits.astype("<u2").tobytes())


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
