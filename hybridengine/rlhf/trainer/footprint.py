"""footprint: the memory that the roles of each rank will take, told before anything is built.

It is counted from shapes and types alone. Activations, the engine's cache of keys and values and
what libraries take are not in it: they depend on the rows of a step, and on what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hybridengine import LayoutRule, Spec
from hybridengine.rlhf.config.pools import pools_of
from hybridengine.rlhf.config.roles import Actor, Critic, Sharding
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.training.lora import add_adapters, plain_name
from hybridengine.rlhf.training.models import Kind, empty_model, shard_dtype, weight_dtype
from hybridengine.rlhf.training.sharding import decoder_layers
from hybridengine.wording import human_bytes

_MOMENTS = 2  # of AdamW, each as large as the weights that step
_COLUMNS = ("weights", "optimizer", "gradients", "gathered")


@dataclass(frozen=True)
class Footprint:
    """Bytes of one role on one rank, at most. `weights`: what it keeps. `gathered`: what is there
    for as long as a pass runs."""

    pool: str
    role: str
    weights: int
    optimizer: int = 0
    gradients: int = 0
    gathered: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, column) for column in _COLUMNS)


def footprints(config: Config, placement: str) -> list[Footprint]:
    """A row for each role with a model, by pool."""
    return [
        _footprint(config, name, role, pool.ranks)
        for name, pool in pools_of(config, placement).items()
        for role in pool.roles
        if role != "reward"
    ]


def table(rows: Sequence[Footprint]) -> list[str]:
    """As lines, with the sum of each pool's roles, which share its ranks."""
    lines = [f"{'memory of a rank':<22}" + "".join(f"{each:>11}" for each in (*_COLUMNS, "sum"))]
    for pool in dict.fromkeys(row.pool for row in rows):
        there = [row for row in rows if row.pool == pool]
        for row in there:
            numbers = [getattr(row, column) for column in _COLUMNS]
            lines.append(_line(f"{pool}: {row.role}", [*numbers, row.total]))
        if len(there) > 1:
            sums = [sum(getattr(row, column) for row in there) for column in _COLUMNS]
            lines.append(_line(f"{pool}: together", [*sums, sum(sums)]))
    lines.append("besides: activations, the engine's cache, libraries")
    return lines


def _line(what: str, numbers: Sequence[int]) -> str:
    cells = (human_bytes(number) if number else "-" for number in numbers)
    return f"{what:<22}" + "".join(f"{cell:>11}" for cell in cells)


def _footprint(config: Config, pool: str, role: str, ranks: int) -> Footprint:
    if role == "rollout":
        rollout = config.rollout
        empty = empty_model(config.model, "policy", dtype=getattr(torch, rollout.dtype))
        return Footprint(pool, role, _cut_bytes(empty, rollout.dtype, rollout.tp_size))
    if role == "actor":
        return _trained(config, pool, role, "policy", config.actor, ranks)
    if role == "critic":
        return _trained(config, pool, role, "value", config.critic, ranks, config.critic.path)
    if role == "reference":
        reference: Any = empty_model(config.model, "policy", config.reference.path)
        return _frozen(pool, role, reference, config.actor, ranks)
    model = config.reward_model
    empty = empty_model(config.model, "classifier", model.path, dtype=getattr(torch, model.dtype))
    if model.tp_size > 1:
        return Footprint(pool, role, _cut_bytes(empty, model.dtype, model.tp_size))
    return _frozen(pool, role, empty, Sharding(dtype=model.dtype), ranks)


def _trained(
    config: Config,
    pool: str,
    role: str,
    kind: Kind,
    section: Actor | Critic,
    ranks: int,
    path: str | None = None,
) -> Footprint:
    module = empty_model(config.model, kind, path)
    merged = 0  # what generates, beside the weights below adapters
    if isinstance(section, Actor) and section.lora.enable:
        add_adapters(module, section.lora, config.seed)
        names = [name for name, _ in module.named_parameters() if name.endswith(".weight")]
        adapted = [name for name in names if plain_name(name) != name]
        merged = sum(_rows(module.get_parameter(name), ranks) for name in adapted)
    held, wide = shard_dtype(section, trains=True).itemsize, weight_dtype(section).itemsize
    weights = _shard_elems(module, ranks)
    stepped = _shard_elems(module, ranks, trains=True)
    masters = wide if held < wide else 0
    whole = _gathered_elems(module, section) * getattr(torch, section.dtype).itemsize
    unreduced = 0
    if section.sync_every > 1:
        unreduced = sum(each.numel() for each in module.parameters() if each.requires_grad) * wide
    return Footprint(
        pool,
        role,
        weights=(weights + merged) * held,
        optimizer=stepped * (_MOMENTS * wide + masters),
        gradients=stepped * (held + masters) + unreduced,
        gathered=whole,
    )


def _frozen(pool: str, role: str, module: nn.Module, sharding: Sharding, ranks: int) -> Footprint:
    size = shard_dtype(sharding, trains=False).itemsize
    gathered = _gathered_elems(module, sharding) * size
    return Footprint(pool, role, _shard_elems(module, ranks) * size, gathered=gathered)


def _shard_elems(module: nn.Module, ranks: int, *, trains: bool = False) -> int:
    """Elements of the first rank's shards, which are the largest."""
    weights = [each for each in module.parameters() if each.requires_grad or not trains]
    return sum(_rows(each, ranks) for each in weights)


def _rows(weight: torch.Tensor, ranks: int) -> int:
    """Elements of as many rows as a rank has."""
    length = weight.shape[0] if weight.dim() else 1
    return -(-length // ranks) * (weight.numel() // max(1, length))


def _gathered_elems(module: nn.Module, sharding: Sharding) -> int:
    """Elements that FSDP2 has gathered at a time: the largest layer that is a unit, and the rest,
    which is there for as long as a pass runs."""
    layers = [sum(each.numel() for each in layer.parameters()) for layer in decoder_layers(module)]
    units = [size for size in layers if size >= sharding.min_num_params]
    root = sum(each.numel() for each in module.parameters()) - sum(units)
    return root + max(units, default=0)


def _cut_bytes(module: Any, dtype: str, tp_size: int) -> int:
    """Of the first of `tp_size` ranks that share its layers."""
    if tp_size == 1:
        return sum(each.nbytes for each in module.parameters())
    module.config.architectures = None  # a classifier's layers are those of its type
    layout = LayoutRule.parse(f"tensor_parallel({tp_size})").bind(
        Spec.from_config(module.config, dtype)
    )
    return int(layout.num_bytes(0))
