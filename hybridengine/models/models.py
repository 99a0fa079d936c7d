"""Models by name: a preset, the one with real weights, or the directory of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hybridengine._core import UsageError
from hybridengine.checkpoint import Checkpoint
from hybridengine.layouts.spec import Spec
from hybridengine.models import smollm2
from hybridengine.models.presets import PRESETS

# Presets whose weights can be had, and what makes their directory on first use.
_WEIGHTS: dict[str, Callable[[], Path]] = {smollm2.NAME: smollm2.smollm2_directory}


@dataclass(frozen=True, eq=False)
class Model:
    """A model that can be planned with, and read where it has weights."""

    name: str
    spec: Spec
    directory: Callable[[], Path] | None = None

    def open(self) -> Checkpoint | None:
        """Its weights, read tensor by tensor or slice by slice; None where there is only a config.

        The first call for a preset may download. Throws UsageError where that fails.
        """
        if self.directory is None:
            return None
        return Checkpoint(self.directory(), self.spec.aliases)


def model_names() -> list[str]:
    return list(PRESETS)


def resolve(name_or_directory: str | os.PathLike[str]) -> Model:
    """A preset by name, or a HF directory: a checkpoint, or a config.json alone.

    Downloads nothing. Throws UsageError that lists the names.
    """
    name = os.fspath(name_or_directory)
    if name in PRESETS:
        return Model(name, Spec.from_config(PRESETS[name]), _WEIGHTS.get(name))
    directory = Path(name)
    if not directory.is_dir():
        raise UsageError(
            f"{name!r} is no model and no directory. Use {', '.join(PRESETS)}, or the directory of "
            "a checkpoint."
        )
    if any(directory.glob("*.safetensors*")):
        return Model(name, Spec.from_hf(directory), lambda: directory)
    return Model(name, Spec.from_config(directory / "config.json"))
