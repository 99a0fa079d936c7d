"""sharded: the models of a rank's roles, as the rank holds them."""

from __future__ import annotations

from torch import nn

from hybridengine.rlhf.config.roles import Lora, Sharding
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.roles.progress import follow
from hybridengine.rlhf.training.loading import build_model
from hybridengine.rlhf.training.lora import add_adapters
from hybridengine.rlhf.training.models import Kind, shard_dtype
from hybridengine.rlhf.training.sharding import home, shard
from hybridengine.rlhf.workers import RankContext


def sharded_model(
    context: RankContext,
    config: Config,
    kind: Kind,
    sharding: Sharding,
    path: str | None = None,
    *,
    trains: bool,
    lora: Lora | None = None,
) -> nn.Module:
    """This rank's shards over its pool of the model of `path`, or else of `config.model`, with
    adapters where `lora` says so. Every weight that is read counts as progress, and every forward
    pass later. Throws UsageError as build_model does. Collective."""

    def cut(module: nn.Module) -> None:
        if lora is not None and lora.enable:
            add_adapters(module, lora, config.seed)
        if not trains:
            module.requires_grad_(False)
        shard(module, sharding, context.mesh)

    module = build_model(
        config.model,
        kind,
        shard_dtype(sharding, trains=trains),
        config.seed,
        path,
        cut=cut,
        device=home(sharding, context.device),
        progress=context.progress,
    )
    follow(module, context)
    return module
