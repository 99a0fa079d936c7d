"""Spec: the logical tensors of a model, under the names and shapes of its checkpoint.

Made from a config alone, from a checkpoint's headers, or by hand. No weights are read, and
transformers is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Dict
from pathlib import Path
from typing import Any, Protocol

from hybridengine import _core, options
from hybridengine._core import UsageError
from hybridengine.checkpoint import TensorRow, checkpoint_files, read_header, read_json
from hybridengine.layouts.mapping import MAPPINGS, find_mapping, get_mapping, not_mapped
from hybridengine.layouts.mapping.config import ModelConfig, read_config
from hybridengine.layouts.mapping.mapping import Mapping
from hybridengine.wording import counted, kind_of

_MAGIC = b"HESPEC1\n"

# Old checkpoints store what every model computes for itself.
_COMPUTED = "rotary_emb.inv_freq"


class TensorLike(Protocol):
    """Any tensor with torch's names for its shape and dtype."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...


class Spec:
    """Names, shapes and dtypes; and the config they came from, where there is one."""

    def __init__(
        self, core: _core.Spec, config: ModelConfig | None = None, no_config: str = ""
    ) -> None:
        """`no_config`: what to say where a layout needs a config and there is none; '{layout}' in
        it stands for the layout."""
        self.core = core
        self.config = config
        self.no_config = no_config

    @staticmethod
    def from_tensors(
        tensors: Iterable[tuple[str, Sequence[int], Any]] | Dict[str, TensorLike],
        aliases: Iterable[tuple[str, str]] = (),
        config: ModelConfig | None = None,
    ) -> Spec:
        """From (name, shape, dtype) rows or a state dict; a dtype is torch's or its name.

        An alias (name, tensor) is a second name for the same storage. Throws UsageError on a name
        given twice or an unknown dtype.
        """
        if isinstance(tensors, Dict):
            tensors = _rows_of(tensors)
        try:
            rows = [
                (name, tuple(shape), str(dtype).removeprefix("torch."))
                for name, shape, dtype in tensors
            ]
            core = _core.Spec(rows, list(aliases))
        except (TypeError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                "a row of tensors or an alias has another form than it should. Give rows as "
                "('lm_head.weight', (32000, 4096), 'bfloat16'), aliases as (second name, tensor)."
            ) from error
        return Spec(core, config)

    @staticmethod
    def from_config(
        config: Dict[str, Any] | str | os.PathLike[str] | Any, dtype: str | None = None
    ) -> Spec:
        """From the content of a config.json, the path of one, or a transformers config.

        `dtype` is that of the config unless given (float32 where both are silent). Throws
        UsageError on an architecture without a mapping, listing those we know.
        """
        return Spec.from_architecture(_read(_raw_config(config), dtype)[1])

    @staticmethod
    def from_architecture(config: ModelConfig) -> Spec:
        """From a config that has been read already."""
        mapping = get_mapping(config.architecture)
        rows = [(name, shape, config.dtype) for name, shape in mapping.tensors(config)]
        return Spec(_core.Spec(rows, mapping.aliases(config)), config)

    @staticmethod
    def from_hf(directory: str | os.PathLike[str]) -> Spec:
        """From a checkpoint's config.json and the headers of its safetensors files.

        Where the architecture has a mapping, names and shapes are checked against it, and the
        UsageError lists what differs. A head that is stored although the config ties it counts as
        the embedding's second name. Otherwise the tensors are taken as stored, with no config.
        """
        if not isinstance(directory, (str, os.PathLike)):
            raise UsageError(f"directory is {kind_of(directory)}. Name a checkpoint's directory.")
        root = Path(directory)
        stored = [row for path in checkpoint_files(root) for row in read_header(path)]
        _check_unique(root, [name for name, _, _ in stored])
        raw = read_json(root / "config.json")
        if find_mapping(raw.get("architectures"), raw.get("model_type")) is None:
            reason = not_mapped(raw.get("architectures"), raw.get("model_type"))
            return Spec(Spec.from_tensors(stored).core, None, reason)
        mapping, config = _read(raw, None)
        aliases = mapping.aliases(config)
        unmoved = {alias for alias, _ in aliases}
        kept = [row for row in stored if row[0] not in unmoved and not row[0].endswith(_COMPUTED)]
        return Spec(_core.Spec(_match(root, mapping.tensors(config), kept), aliases), config)

    @property
    def tensors(self) -> list[TensorRow]:
        """(name, shape, dtype) in order. Makes the list anew."""
        return self.core.tensors

    @property
    def aliases(self) -> list[tuple[str, str]]:
        """(second name, tensor) of tied weights."""
        return self.core.aliases

    @property
    def num_bytes(self) -> int:
        return self.core.num_bytes

    def find(self, name: str) -> int:
        """Index of a tensor, -1 where there is none."""
        return self.core.find(options.text("name", name))

    def with_dtype(self, dtype: str) -> Spec:
        """The same spec with every floating tensor as `dtype`."""
        core = self.core.with_dtype(str(dtype).removeprefix("torch."))
        return Spec(core, self.config, self.no_config)

    def save(self) -> bytes:
        """All of it, config included, as bytes that load() reads."""
        config = b"" if self.config is None else self.config.save().encode()
        return _MAGIC + len(config).to_bytes(8, "little") + config + self.core.save()

    @staticmethod
    def load(blob: bytes) -> Spec:
        """The inverse of save(). Throws UsageError on bytes that are no spec."""
        blob = options.blob("a spec to load", blob)
        begin = len(_MAGIC) + 8
        end = begin + int.from_bytes(blob[len(_MAGIC) : begin], "little")
        if not blob.startswith(_MAGIC) or end > len(blob):
            raise UsageError("these bytes are no saved spec, or are cut short. Use Spec.save().")
        config = ModelConfig.load(blob[begin:end].decode()) if end > begin else None
        return Spec(_core.Spec.load(blob[end:]), config)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Spec)
            and bool(self.core == other.core)
            and self.config == other.config
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return str(self.core)

    def __repr__(self) -> str:
        architecture = "plain" if self.config is None else self.config.architecture
        tensors = counted(len(self.tensors), "tensor")
        return f"Spec({architecture}, {tensors}, {self.num_bytes} bytes)"


def _rows_of(tensors: Dict[str, TensorLike]) -> list[tuple[str, Sequence[int], Any]]:
    for name, each in tensors.items():
        if not hasattr(each, "shape") or not hasattr(each, "dtype"):
            raise UsageError(f"{name!r} is {kind_of(each)}, not a tensor. Leave it out.")
    return [(name, tuple(each.shape), each.dtype) for name, each in tensors.items()]


def _raw_config(config: Any) -> Dict[str, Any]:
    if isinstance(config, (str, os.PathLike)):
        return read_json(Path(config))
    if isinstance(config, Dict):
        return config
    if hasattr(config, "to_dict"):
        raw = config.to_dict()
        if isinstance(raw, Dict):
            return raw
    raise UsageError(
        f"{kind_of(config)} is no config. Pass a dict, the path of a config.json or a "
        "transformers config."
    )


def _read(raw: Dict[str, Any], dtype: str | None) -> tuple[Mapping, ModelConfig]:
    architectures, model_type = raw.get("architectures"), raw.get("model_type")
    mapping = find_mapping(architectures, model_type)
    if mapping is None:
        raise UsageError(
            f"no mapping for architectures {architectures!r}, model_type {model_type!r}. Known "
            f"are {', '.join(MAPPINGS)}; for another one make the spec with Spec.from_tensors() "
            "and pass mapping= to the layouts."
        )
    name = None if dtype is None else str(dtype).removeprefix("torch.")
    return mapping, read_config(
        raw, mapping.architecture, tie=mapping.tie, head_dim=mapping.head_dim, dtype=name
    )


def _match(
    root: Path, expected: list[tuple[str, tuple[int, ...]]], stored: list[TensorRow]
) -> list[TensorRow]:
    """The stored rows in the mapping's order. Throws UsageError that lists what differs."""
    found = {name: (shape, dtype) for name, shape, dtype in stored}
    wrong = [f"{name!r} is missing" for name, _ in expected if name not in found]
    wrong += [
        f"{name!r} is {list(found[name][0])}, expected {list(shape)}"
        for name, shape in expected
        if name in found and found[name][0] != shape
    ]
    names = {name for name, _ in expected}
    wrong += [f"{name!r} is not expected" for name in found if name not in names]
    if wrong:
        listed = "; ".join(wrong[:8]) + (f"; and {len(wrong) - 8} more" if len(wrong) > 8 else "")
        raise UsageError(
            f"the checkpoint does not fit its config: {listed}. Check {root / 'config.json'}."
        )
    return [(name, shape, found[name][1]) for name, shape in expected]


def _check_unique(root: Path, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UsageError(f"{name!r} is in two files of {root}. Remove one.")
        seen.add(name)
