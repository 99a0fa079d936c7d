"""ends: the layouts that weights move between in this trainer: the actor's shards, the engines.

The ranks of a transfer are the actor's, and after them those of the rollout where it has a pool of
its own; in a colocated pool each rank is both.
"""

from __future__ import annotations

import torch

from hybridengine import Layout, LayoutRule, Spec
from hybridengine.rlhf.config.roles import Actor
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.training.models import shard_dtype


def spec_of(module: torch.nn.Module, actor: Actor) -> Spec:
    """The tensors of a transformers module in the type in which the actor's shards hold them."""
    dtype = str(shard_dtype(actor, trains=True)).removeprefix("torch.")
    return Spec.from_config(module.config, dtype)


def shards(spec: Spec, num_ranks: int) -> Layout:
    """Those of FSDP2 on the first `num_ranks` ranks."""
    return LayoutRule.parse(f"fsdp2({num_ranks})").bind(spec)


def engines(config: Config, spec: Spec, num_ranks: int, world: int) -> Layout:
    """The engines' weights on the last `num_ranks` of `world` ranks, of which `rollout.tp_size`
    share one engine."""
    tp_size = config.rollout.tp_size
    replicas = num_ranks // tp_size
    shared = f"tensor_parallel({tp_size},replicas={replicas})"
    rule = f"replicated({replicas})" if tp_size == 1 else shared
    where = f"@{world - num_ranks}-{world - 1}"
    return LayoutRule.parse(rule + where).bind(spec.with_dtype(config.rollout.dtype))
