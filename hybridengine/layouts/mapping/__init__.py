"""Architectures as data: which tensors a model has, how they are cut, what vLLM fuses.

One file per family, one Mapping per architecture, one line in the table below. A model that nobody
mapped needs no change here (see hybridengine.mapping).
"""

from __future__ import annotations

from hybridengine._core import UsageError
from hybridengine.layouts.mapping.gemma import GEMMA, GEMMA2, GEMMA3
from hybridengine.layouts.mapping.llama import LLAMA, MISTRAL
from hybridengine.layouts.mapping.mapping import Mapping
from hybridengine.layouts.mapping.olmo import OLMO2
from hybridengine.layouts.mapping.qwen import QWEN2, QWEN3

MAPPINGS: dict[str, Mapping] = {
    mapping.architecture: mapping
    for mapping in (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3, OLMO2)
}

_ARCHITECTURE_OF = {mapping.model_type: name for name, mapping in MAPPINGS.items()}


def find_mapping(architectures: object, model_type: object) -> Mapping | None:
    """The mapping of a config's `architectures` list, or of its `model_type` where it has none."""
    if isinstance(architectures, (list, tuple)) and architectures:
        return MAPPINGS.get(str(architectures[0]))
    return MAPPINGS.get(_ARCHITECTURE_OF.get(str(model_type), ""))


def not_mapped(architectures: object, model_type: object) -> str:
    """What to say of a config without a mapping; '{layout}' stands for the layout's text."""
    names = ", ".join(sorted(_ARCHITECTURE_OF))
    what = f"model_type {model_type!r}"
    if isinstance(architectures, (list, tuple)) and architectures:
        what = str(architectures[0]) + (f" ({what})" if model_type else "")
    return (
        f"{what} is not mapped; mapped are {names}. Make a Mapping for it (docs/layouts.md) and "
        "pass LayoutRule.parse('{layout}', mapping=mapping)."
    )


def get_mapping(architecture: str) -> Mapping:
    """The mapping of an architecture. Throws UsageError that lists those we know."""
    if architecture not in MAPPINGS:
        raise UsageError(
            f"architecture {architecture!r} has no mapping. Known are {', '.join(MAPPINGS)}; for "
            "another one make a Mapping and pass it as mapping=."
        )
    return MAPPINGS[architecture]
