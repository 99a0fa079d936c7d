"""mapping: what describes a model that nobody mapped, for those who write such a table.

How it is used says hybridengine.layouts.mapping.
"""

from hybridengine.layouts.mapping import (
    MAPPINGS,
    Cut,
    Mapping,
    ModelConfig,
    Target,
    Weight,
    column,
    find_mapping,
    get_mapping,
    read_config,
    row,
)

__all__ = [
    "MAPPINGS",
    "Cut",
    "Mapping",
    "ModelConfig",
    "Target",
    "Weight",
    "column",
    "find_mapping",
    "get_mapping",
    "read_config",
    "row",
]
