"""model_config: the config of what a caller passed as a model, through the wrappers around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridengine._core import UsageError
from hybridengine.layouts.mapping import find_mapping, not_mapped
from hybridengine.layouts.mapping.config import ModelConfig
from hybridengine.layouts.spec import Spec
from hybridengine.layouts.wrappers import INNER

# '{layout}' stands for the layout that needs a config.
_OF_A_DICT = (
    "a dict of tensors has no config. Pass "
    "dst = LayoutRule.parse('{layout}').bind(Spec.from_config(model.config))."
)
_OF_A_MODULE = (
    "the module has no transformers config. Make a Mapping for it (docs/layouts.md) and pass "
    "LayoutRule.parse('{layout}', mapping=mapping)."
)


def config_of(model: Any) -> tuple[ModelConfig | None, str]:
    """The config of a transformers model whose architecture has a mapping; or None, and what to say
    where a layout needs it."""
    if isinstance(model, Mapping):
        return None, _OF_A_DICT
    config = _found(model)
    if config is None:
        return None, _OF_A_MODULE
    try:
        return Spec.from_config(config).config, ""
    except UsageError as error:
        raw = config.to_dict()
        architectures, kind = raw.get("architectures"), raw.get("model_type")
        known = find_mapping(architectures, kind) is not None
        return None, (
            f"its config does not say enough: {error}" if known else not_mapped(architectures, kind)
        )


def _found(model: Any) -> Any:
    """Its own config, or that of the module inside."""
    while model is not None:
        config = getattr(model, "config", None)
        if hasattr(config, "to_dict"):
            return config
        model = next((each for name in INNER if (each := getattr(model, name, None))), None)
    return None
