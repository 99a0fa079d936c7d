"""models: the HF modules that train, before they have memory for their weights, and their types.

How weights come into them is loading.py's. Nothing here runs a forward pass.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from hybridengine._core import UsageError
from hybridengine.rlhf.config.roles import Actor, Critic, Sharding
from hybridengine.rlhf.config.schema import Config, Model
from hybridengine.rlhf.model_files import checkpoint_dtype, model_directory

Kind = Literal["policy", "value", "classifier"]

# What `strategy: auto` shards by FSDP2 alone has fewer weights than this.
MEGATRON_WEIGHTS = 70e9


def empty_model(
    model: Model,
    kind: Kind,
    path: str | os.PathLike[str] | None = None,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """The model without memory for its weights, which are of `dtype` on torch's meta device; its
    buffers are there, on the host. In eval mode (no dropout).

    policy: a causal language model. value and classifier: the same backbone with a linear head
    `score` of one number. `path` overrides `model.path`; without either, model.config says what it
    is. Throws UsageError on a directory that does not load and a config that makes no such model.
    """
    from accelerate import init_empty_weights  # type: ignore[import-untyped]

    source = source_of(model, path)
    module: Any
    with init_empty_weights(include_buffers=False):
        if source is None:
            module = from_config(model.config, kind, dtype)
        else:
            module = _from_files(model_directory(source), kind, dtype)
    if kind != "policy":
        _check_head(module)
    module.tie_weights()  # each was given a tensor of its own on the meta device
    empty: nn.Module = module.eval()
    return empty


def source_of(model: Model, path: str | os.PathLike[str] | None) -> str | None:
    """The name of the weights' directory; None where they are drawn. Throws UsageError where there
    is neither."""
    source = model.path if path is None else os.fspath(path)
    if source is None and not model.config:
        raise UsageError(
            "model.path and model.config are both unset: there is nothing to train. Set model.path "
            "to the directory of a checkpoint, or model.config to a HF config."
        )
    return source


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Inside, transformers draws no progress bars and reports no missing heads."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def weight_dtype(sharding: Sharding) -> torch.dtype:
    """In which type weights are held and stepped: float64 if all is, else float32."""
    return torch.float64 if sharding.dtype == "float64" else torch.float32


def shard_dtype(sharding: Sharding, *, trains: bool) -> torch.dtype:
    """In which type shards lie: what trains as `param_dtype` says; what does not as it computes,
    which gives the same numbers as a rounding at each pass."""
    if trains and sharding.param_dtype != "bfloat16":
        return weight_dtype(sharding)
    computes: torch.dtype = getattr(torch, sharding.dtype)
    return computes


def export_dtype(config: Config, sharding: Sharding) -> torch.dtype:
    """In which type hf/ holds weights: that of trainer.hf_dtype, else that of the checkpoint which
    they come from, else that in which they step."""
    name: str | None = config.trainer.hf_dtype
    if name == "checkpoint":
        name = checkpoint_dtype(config.model)
    found = None if name is None else getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else weight_dtype(sharding)


def section_of(sharding: Sharding) -> str:
    """What its keys begin with in the config: "actor.", "critic.", or nothing."""
    return {Actor: "actor.", Critic: "critic."}.get(type(sharding), "")


def strategy_of(sharding: Sharding, num_weights: int) -> str:
    """The strategy that trains a model of so many weights: "fsdp2".

    Throws UsageError where it would be megatron, chosen or by size.
    """
    section = section_of(sharding)
    large = num_weights >= MEGATRON_WEIGHTS
    if sharding.strategy == "megatron" or (sharding.strategy == "auto" and large):
        raise UsageError(
            f"{section}strategy={sharding.strategy} means megatron for {num_weights / 1e9:.1f} "
            f"billion weights, which this version cannot train. Set {section}strategy=fsdp2."
        )
    return "fsdp2"


def auto_class(kind: Kind) -> Any:
    import transformers

    if kind == "policy":
        return transformers.AutoModelForCausalLM
    return transformers.AutoModelForSequenceClassification


def from_config(facts: dict[str, Any], kind: Kind, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoConfig

    facts = dict(facts)
    model_type = facts.pop("model_type", None)
    try:
        config = AutoConfig.for_model(model_type, **facts)
        if kind != "policy":
            config.num_labels = 1
        module: nn.Module = auto_class(kind).from_config(config, dtype=dtype)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"model.config makes no {kind} model of type {model_type!r}: {_line(error)}. Give a "
            "model_type that transformers knows, and its keys."
        ) from None
    return module


def _from_files(directory: Path, kind: Kind, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoConfig, GenerationConfig

    options = {} if kind == "policy" else {"num_labels": 1}
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(directory, local_files_only=True, **options)
            module: Any = auto_class(kind).from_config(config, dtype=dtype)
            if module.can_generate() and (directory / "generation_config.json").is_file():
                module.generation_config = GenerationConfig.from_pretrained(directory)
    except Exception as error:  # whatever a damaged file makes a parser raise
        raise does_not_load(directory, kind, error) from None
    made: nn.Module = module
    return made


def _check_head(module: nn.Module) -> None:
    if not isinstance(getattr(module, "score", None), nn.Linear):
        raise UsageError(
            f"{type(module).__name__} has no linear head named 'score'. Use a decoder-only model, "
            "e.g. of the Llama or Qwen family."
        )


def does_not_load(directory: Path, kind: Kind, error: BaseException) -> UsageError:
    return UsageError(
        f"{str(directory)!r} does not load as a {kind} model: {_line(error)}. Give the "
        "directory of a HF checkpoint (config.json and safetensors), or smollm2-135m."
    )


def _line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300].rstrip(".")
