"""mapping: what makes a Mapping, the table of a model that nobody mapped.

    from hybridengine.mapping import Mapping, Weight, column, row

    mapping = Mapping(
        [
            Weight("blocks.*.gate.weight", cut=column(6), fused=("blocks.*.gate_up.weight", 0)),
            Weight("blocks.*.up.weight", cut=column(6), fused=("blocks.*.gate_up.weight", 1)),
            Weight("blocks.*.down.weight", cut=row(6)),
            Weight("**"),  # the rest is whole on every rank
        ]
    )
    layout = Layout.vllm(tp=2, mapping=mapping).bind(spec)

column(6) says that dim 0 is 6 equal units: tp must divide 6. column(2, shared=True) also lets more
ranks than units share them, as kv heads do.
"""

from hybridengine.layouts.mapping import MAPPINGS, find_mapping, get_mapping
from hybridengine.layouts.mapping.config import ModelConfig, read_config
from hybridengine.layouts.mapping.mapping import Mapping
from hybridengine.layouts.mapping.rules import Target
from hybridengine.layouts.mapping.weight import Cut, Weight, column, row

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
