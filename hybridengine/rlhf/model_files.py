"""model_files: the directories of a run's models, as their small files tell them.

config.json and the headers of the weights say what cannot train, before anything heavy is imported
and before anything starts. Weights themselves are read by the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridengine._core import UsageError
from hybridengine.checkpoint import checkpoint_files, read_header, read_json
from hybridengine.layouts.mapping import MAPPINGS, find_mapping
from hybridengine.layouts.spec import Spec
from hybridengine.models import models as presets
from hybridengine.rlhf.config.role_names import roles_of
from hybridengine.rlhf.config.schema import Config, Model
from hybridengine.rlhf.hub import HubId, model_snapshot

_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_SHOWN = 3  # tensors in an error


def model_directory(source: str) -> Path:
    """A directory as it is; a preset's is made on first use; that of a hub id lies in the hub's
    cache."""
    if Path(source).is_dir():
        return Path(source)
    if source not in presets.model_names():
        hub_id = HubId.parse(source)
        if hub_id is not None and hub_id.pattern is None:
            return model_snapshot(hub_id)
        raise UsageError(
            f"{source!r} is no model and no directory. Use smollm2-135m, the directory of a HF "
            "checkpoint, or an id of the Hugging Face hub (org/name)."
        )
    resolved = presets.resolve(source)
    if resolved.directory is None:
        raise UsageError(
            f"model {source!r} is a preset without weights. Use smollm2-135m, or the directory of "
            "a checkpoint."
        )
    return resolved.directory()


def checkpoint_dtype(model: Model) -> str | None:
    """The type of the weights that a model starts from, as its config says; None where it does
    not."""
    facts: Mapping[str, Any] = model.config
    if model.path is not None:
        facts = read_json(model_directory(model.path) / "config.json")
    name = facts.get("dtype", facts.get("torch_dtype"))
    return None if name is None else str(name).removeprefix("torch.")


def generation_facts(model: Model) -> Mapping[str, Any]:
    """What generation_config.json of a model says; nothing where there is none."""
    if model.path is None:
        return {}
    path = model_directory(model.path) / "generation_config.json"
    facts: Mapping[str, Any] = read_json(path) if path.is_file() else {}
    return facts


def trained_types() -> list[str]:
    """The values of model_type with which a policy trains online: those whose weights can be moved
    to the engine that generates."""
    return sorted({mapping.model_type for mapping in MAPPINGS.values()})


def check_models(config: Config) -> None:
    """Throws UsageError where a model that the run has a use for lacks config.json or weights, has
    weights of other shapes than its config says, or is of a family that does not train."""
    model = config.model
    facts: Mapping[str, Any] = model.config
    if model.path is not None:
        facts = _checked_facts(model.path, "model.path")
    roles = roles_of(config)
    if "rollout" in roles:
        where = "model.config" if model.path is None else f"model.path={model.path}"
        _check_family(facts, where)
    for role in ("critic", "reference", "reward_model"):
        path = getattr(config, role).path
        if role in roles and path is not None:
            _checked_facts(path, f"{role}.path")


def check_base_model(config: Config) -> None:
    """The same for `train-reward`, which has one model, of any family."""
    if config.model.path is not None:
        _checked_facts(config.model.path, "model.path")


def _check_family(facts: Mapping[str, Any], where: str) -> None:
    architectures, model_type = facts.get("architectures"), facts.get("model_type")
    if find_mapping(architectures, model_type) is not None:
        return
    known = trained_types()
    if architectures and model_type in known:
        what = f"a {architectures[0]}, which does not generate"
    else:
        what = f"of model_type {model_type!r}, which does not train with data.mode=online"
    raise UsageError(
        f"{where} is {what}. Use a causal language model of model_type {', '.join(known[:-1])} or "
        f"{known[-1]}."
    )


def _checked_facts(source: str, key: str) -> Mapping[str, Any]:
    """What its config.json says, once the directory has passed."""
    directory = model_directory(source)
    if not (directory / "config.json").is_file():
        raise UsageError(
            f"{key}: {directory} has no config.json. Give the directory of a HF checkpoint."
        )
    facts = read_json(directory / "config.json")
    if any((directory / name).is_file() for name in _SAFETENSORS):
        _check_shapes(directory, facts)
    elif not any((directory / name).is_file() for name in _PICKLED):
        raise UsageError(
            f"{key}: {directory} has no weights (no {' or '.join(_SAFETENSORS)}). Give the "
            "directory of a complete checkpoint, or model.config for random weights."
        )
    return facts


def _check_shapes(directory: Path, facts: Mapping[str, Any]) -> None:
    """Of the tensors that the config tells; which others are there, and which lack, is seen when
    they are loaded."""
    stored = [row for path in checkpoint_files(directory) for row in read_header(path)]
    expected = _expected_shapes(facts)
    wrong = [
        f"{name!r} is {list(shape)}, by its config {list(expected[name])}"
        for name, shape, _ in stored
        if expected.get(name, shape) != shape
    ]
    if wrong:
        rest = len(wrong) - _SHOWN
        more = f"; and {rest} more" if rest > 0 else ""
        raise UsageError(
            f"{directory}: weights have other shapes than config.json says: "
            f"{'; '.join(wrong[:_SHOWN])}{more}. Give weights and config of one model."
        )


def _expected_shapes(facts: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """By name; none for a family that nobody mapped. A classifier has the layers of its type."""
    if find_mapping(None, facts.get("model_type")) is None:
        return {}
    spec = Spec.from_config({**facts, "architectures": None})
    return {name: shape for name, shape, _ in spec.tensors}
