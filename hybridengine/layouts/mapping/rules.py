"""Rules: what a layout asks of a mapping, and the core's tensor rules that answer it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.layouts.mapping.config import ModelConfig
from hybridengine.layouts.mapping.limits import Limit, check_tp
from hybridengine.layouts.mapping.weight import Cut, Weight

# Refusals name the limits in this order.
_ORDER = ("heads", "kv_heads", "intermediate")
_UNITS = {"heads": "attention heads", "kv_heads": "kv heads"}


@dataclass(frozen=True)
class Target:
    """The mesh axes that cut, and the manners of the engine that holds the shards."""

    tp: int
    tp_axis: int
    fuse: bool = False
    vocab_multiple: int = 1  # the vocabulary is padded to a multiple of this, then cut
    after: tuple[_core.Cut, ...] = ()  # cuts of what tensor parallelism leaves
    pp: int = 1
    pp_axis: int = -1  # -1: there are no stages
    tied: bool = False  # the last stage holds the embedding too


def make_rules(
    weights: Sequence[Weight], config: ModelConfig | None, target: Target
) -> list[_core.TensorRule]:
    """One rule per weight, two for a tied embedding in a pipeline.

    Throws UsageError where target.tp cannot cut the model, with the values that could.
    """
    check_tp(_limits(weights, config, target.vocab_multiple), target.tp)
    return [rule for weight in weights for rule in _rules_of(weight, config, target)]


def _rules_of(weight: Weight, config: ModelConfig | None, target: Target) -> list[_core.TensorRule]:
    cuts = [] if weight.cut is None else [_core_cut(weight, weight.cut, config, target)]
    to, slot = weight.fused if target.fuse and weight.fused is not None else ("**", 0)
    layer_axis = target.pp_axis if weight.layered else -1
    return [
        _core.TensorRule(
            weight.name,
            to,
            slot=slot,
            cuts=[*cuts, *target.after],
            where=where,
            layer_axis=layer_axis,
        )
        for where in _stages(weight, target)
    ]


def _core_cut(weight: Weight, cut: Cut, config: ModelConfig | None, target: Target) -> _core.Cut:
    if cut.by == "vocab" and target.vocab_multiple > 1:
        return _core.Cut(cut.dim, target.tp_axis, "padded", target.vocab_multiple)
    if cut.by in ("vocab", "intermediate"):
        return _core.Cut(cut.dim, target.tp_axis, "even")
    return _core.Cut(cut.dim, target.tp_axis, "units", _count(weight, cut, config))


def _stages(weight: Weight, target: Target) -> list[list[tuple[int, int, int]]]:
    """The pipeline stages of a weight that lies in no layer: a `where` for each rule."""
    if weight.stage == "layer" or target.pp == 1:
        return [[]]
    first = [(target.pp_axis, 0, 1)]
    last = [(target.pp_axis, target.pp - 1, target.pp)]
    if weight.stage == "last":
        return [last]
    return [first, last] if target.tied and weight.by_vocab else [first]


def _limits(
    weights: Sequence[Weight], config: ModelConfig | None, vocab_multiple: int
) -> list[Limit]:
    """The limits of all cuts, each once: heads, kv heads, intermediate size, the rest."""
    limits: dict[Limit, int] = {}
    for weight in weights:
        if weight.cut is None:
            continue
        by, count = weight.cut.by, _count(weight, weight.cut, config)
        place = _ORDER.index(by) if by in _ORDER else len(_ORDER)
        if by == "vocab":
            padded = -(-count // vocab_multiple) * vocab_multiple
            words = f"vocabulary {count}" + (f" padded to {padded}" if padded != count else "")
            limits[Limit(words, padded)] = place
        elif by in ("hidden", "intermediate"):
            limits[Limit(f"{by} size {count}", count)] = place
        else:
            units = _UNITS.get(str(by), f"units of {weight.name!r}")
            limits[Limit(f"{count} {units}", count, weight.cut.shared)] = place
    return sorted(limits, key=lambda limit: limits[limit])


def _count(weight: Weight, cut: Cut, config: ModelConfig | None) -> int:
    if isinstance(cut.by, int):
        return cut.by
    if config is None:
        raise UsageError(
            f"{weight.name!r} is cut by {cut.by!r}, which only a config tells: the spec has none. "
            "Write a number in the mapping, or make the spec with Spec.from_config()."
        )
    return config.dim(cut.by)
