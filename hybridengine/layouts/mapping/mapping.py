"""Mapping: one architecture as a table of weights, and what follows from the table.

From the one table come the names and shapes of a spec, the cuts of plain tensor parallelism, and
the cuts, fused names and stages of vLLM. It knows no ranks: a Target says which mesh axes cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.layouts.mapping.config import ModelConfig
from hybridengine.layouts.mapping.rules import Target, make_rules
from hybridengine.layouts.mapping.weight import Weight, check_weights
from hybridengine.wording import counted, kind_of

NamedShape = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, repr=False)
class Mapping:
    """A table of weights.

    `tie` and `head_dim` say what the architecture means where a config is silent about
    tie_word_embeddings and head_dim (None: hidden size over heads). Any iterable of Weight will do
    for `weights`. Throws UsageError on a row that makes no sense.
    """

    weights: Iterable[Weight]
    architecture: str = ""
    model_type: str = ""
    tie: bool = False
    head_dim: int | None = None

    def __post_init__(self) -> None:
        rows = tuple(self.weights) if isinstance(self.weights, Iterable) else (self.weights,)
        for each in rows:
            if not isinstance(each, Weight):
                raise UsageError(f"{kind_of(each)} is no row of a mapping. Give Weight rows.")
        object.__setattr__(self, "weights", rows)
        check_weights(self.rows(None))

    def __repr__(self) -> str:
        return f"Mapping({self.architecture or 'by hand'}, {counted(len(self.rows(None)), 'row')})"

    def rows(self, config: ModelConfig | None) -> list[Weight]:
        """The rows whose condition holds; all of them where there is no config to ask."""
        return [w for w in self.weights if config is None or not w.when or config.flag(w.when)]

    def tensors(self, config: ModelConfig) -> list[NamedShape]:
        """Names and shapes: what comes before the layers, the layers one by one, what follows.

        Throws UsageError on a row without a shape.
        """
        before: list[NamedShape] = []
        layer: list[NamedShape] = []
        after: list[NamedShape] = []
        for weight in self.rows(config):
            part = layer if weight.layered else after if layer else before
            part.append((weight.name, _shape(weight, config)))
        layers = [
            (name.replace("*", str(number), 1), shape)
            for number in range(config.layers)
            for name, shape in layer
        ]
        return before + layers + after

    def aliases(self, config: ModelConfig) -> list[tuple[str, str]]:
        """Second names of tied weights: (head, embedding), or nothing."""
        if not config.tie:
            return []
        vocab = [weight for weight in self.weights if weight.by_vocab]
        tables = [weight.name for weight in vocab if weight.when != "not tie"]
        return [(weight.name, tables[0]) for weight in vocab if weight.when == "not tie"]

    def rules(self, config: ModelConfig | None, target: Target) -> list[_core.TensorRule]:
        """The core's rules for `target`. Throws UsageError where target.tp cannot cut the model."""
        return make_rules(self.rows(config), config, target)


def _shape(weight: Weight, config: ModelConfig) -> tuple[int, ...]:
    if weight.shape is None:
        raise UsageError(
            f"the mapping gives {weight.name!r} no shape. Add it, or make the spec with "
            "Spec.from_tensors()."
        )
    return tuple(map(config.dim, weight.shape))
