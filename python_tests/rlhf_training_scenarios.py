"""Models of a few thousand weights, rollouts without meaning, and what ranks do with both."""

from __future__ import annotations

import errno
import os
import unittest.mock
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from hybridengine import Communicator, Resharder
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config import roles
from hybridengine.rlhf.config.roles import Sharding
from hybridengine.rlhf.config.schema import Config, Model
from hybridengine.rlhf.training.fsdp2 import Fsdp2
from hybridengine.rlhf.training.loading import build_model
from hybridengine.rlhf.training.lora import add_adapters, merged_tensors
from hybridengine.rlhf.training.passes import Passes
from hybridengine.rlhf.training.ppo import PolicyLoss, ValueLoss
from hybridengine.rlhf.training.sharding import shard
from hybridengine.rlhf.training.state import NotWritten
from hybridengine.rlhf.training.supervised import NextTokenLoss

VOCAB = 23
LENGTHS = (5, 3, 9, 2, 7, 4, 6)
TEMPERATURE = 0.7


def facts(model_type: str = "qwen2", **others: Any) -> dict[str, Any]:
    """Dims that two and three ranks do not divide."""
    return {
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "intermediate_size": 26,
        "tie_word_embeddings": True,
        **others,
    }


def make(kind: str = "policy", seed: int = 1, *, dtype: Any = torch.float64, **others: Any) -> Any:
    """Weights as wide as a trained model's, so that attention is not uniform; norms not all 1."""
    module = build_model(Model(config=facts(**others)), kind, dtype, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_((0.2 * noise).to(parameter.dtype))
    return module


def rollouts(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> Batch:
    """Every column that an update reads, rows in two mini-batches.

    About a third of the tokens is masked, also inside of rows; other columns are NaN there.
    """
    generator = torch.Generator().manual_seed(seed)
    total, sizes = sum(lengths), torch.tensor(lengths)
    mask = torch.rand(total, generator=generator) > 0.35
    mask[sizes.cumsum(0) - sizes] = False
    mask[sizes.cumsum(0) - 1] = True

    def column(scale: float, shift: float = 0.0) -> torch.Tensor:
        values = torch.randn(total, generator=generator, dtype=torch.float64) * scale + shift
        return torch.where(mask, values, torch.nan)

    tokens = {
        "ids": torch.randint(0, VOCAB, (total,), generator=generator),
        "mask": mask,
        "old_log_probs": column(0.3, -3.3),
        "ref_log_probs": column(0.3, -3.3),
        "advantages": column(1.0),
        "weights": column(0.0, 1.0) * 0.7,
        "values": column(0.5),
        "returns": column(1.0),
    }
    rows = {"mini_batch": torch.arange(len(lengths)) % 2}
    return Batch(sizes, tokens, rows)


def config(**sharding: Any) -> Config:
    """Every term of the policy's loss is on."""
    made = Config()
    made.actor = roles.Actor(**{"dtype": "float64", "ppo_epochs": 2, "lr": 1e-2, **sharding})
    made.critic = roles.Critic(**{"dtype": "float64", "ppo_epochs": 2, "lr": 1e-2, **sharding})
    made.algorithm.kl.where = "loss"
    made.algorithm.kl.estimator = "k3"
    made.algorithm.kl_coef = 0.3
    made.algorithm.entropy_coef = 0.02
    for optimizer in (made.actor.optimizer, made.critic.optimizer):
        optimizer.grad_clip = 0.5
        optimizer.eps = 1e-3  # a gradient that is 0 but for rounding makes no step
    return made


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Whole weights by name. Collective where they are sharded."""
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
        for name, value in module.state_dict().items()
    }


def update(
    made: Config,
    batch: Batch,
    *,
    comm: Communicator | None = None,
    kind: str = "policy",
    module: nn.Module | None = None,
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Metrics and whole weights after one update; sharded where there is a communicator."""
    module = make(kind) if module is None else module
    role = made.actor if kind == "policy" else made.critic
    if comm is not None:
        shard(module, role, init_device_mesh("cpu", (comm.world,)))
    backend = Fsdp2(module, role, comm=comm, temperature=TEMPERATURE)
    return train(backend, made, batch, kind), weights_of(module)


def train(backend: Fsdp2, made: Config, batch: Batch, kind: str = "policy") -> dict[str, float]:
    """The metrics of the updates that the config asks for."""
    if kind == "policy":
        return backend.update(batch, PolicyLoss(made.algorithm), made.actor.ppo_epochs)
    return backend.update(batch, ValueLoss(made.algorithm), made.critic.ppo_epochs)


def sharded(comm: Communicator, made: Config, module: nn.Module) -> Fsdp2:
    shard(module, made.actor, init_device_mesh("cpu", (comm.world,)))
    return Fsdp2(module, made.actor, comm=comm, temperature=TEMPERATURE)


def share(batch: Batch, rank: int, world: int) -> Batch:
    """Rows of one rank: uneven, and with more than two ranks the last has none."""
    parts = max(1, world - 1) if world > 2 else world
    return batch.select([i for i in range(len(batch)) if i % parts == rank] if rank < parts else [])


def sendable(weights: dict[str, torch.Tensor]) -> Any:
    """Arrays outlive the process that made them."""
    return {name: value.numpy() for name, value in weights.items()}


def on_ranks(comm: Communicator, folder: str, names: list[str], *args: Any) -> dict[str, Any]:
    """The scenarios of these names, one after the other: processes take long to start."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/gloo{comm.world}",
        rank=comm.rank,
        world_size=comm.world,
    )
    results = {name: globals()[name](comm, folder, *args) for name in names}
    dist.destroy_process_group()
    return results


def updates(comm: Communicator, folder: str, plan: dict[str, Any]) -> list[Any]:
    """One update for each kind of model with options of sharding."""
    mine, found = share(rollouts(), comm.rank, comm.world), []
    for kind, options in plan["updates"]:
        metrics, weights = update(config(**options), mine, comm=comm, kind=kind)
        found.append((metrics, sendable(weights)))
    return found


def early_end(comm: Communicator, folder: str, plan: dict[str, Any]) -> Any:
    """An update that ends by the KL of all ranks."""
    made = config(ppo_epochs=1)
    made.algorithm.kl.limit = plan["limit"]
    mine = share(plan["far"], comm.rank, comm.world)
    metrics, weights = update(made, mine, comm=comm)
    return metrics, sendable(weights)


def types(comm: Communicator, folder: str, plan: dict[str, Any]) -> list[dict[str, float]]:
    """Types and options that real runs use, with old log-probs of the same batch."""
    found = []
    for dtype, options in (
        ("float32", {}),
        ("bfloat16", {"max_tokens_per_gpu": 12, "sync_every": 2}),
        ("bfloat16", {"max_tokens_per_gpu": 12, "param_dtype": "bfloat16"}),
    ):
        held_as = torch.bfloat16 if "param_dtype" in options else torch.float32
        module = make(dtype=held_as)
        made = config(dtype=dtype, **options)
        backend = sharded(comm, made, module)
        mine = share(rollouts(), comm.rank, comm.world)
        mine = mine.with_tokens(old_log_probs=backend.log_probs(mine))
        found.append(train(backend, made, mine))
        held = {parameter.dtype for parameter in module.parameters()}
        assert held == {held_as}, held
    return found


def save(comm: Communicator, folder: str, plan: dict[str, Any]) -> Any:
    """Weights after an update, a save, and another update; and after a load and that update."""
    made, mine = config(), share(rollouts(), comm.rank, comm.world)
    backend = sharded(comm, made, make())
    train(backend, made, mine)
    backend.save(f"{folder}/state")
    backend.export(f"{folder}/hf", None, None)
    exported = weights_of(backend.module)
    train(backend, made, mine)
    return sendable(exported), sendable(weights_of(backend.module)), load(comm, folder, plan)


def full_disk(comm: Communicator, folder: str, plan: dict[str, Any]) -> list[str]:
    """What this rank is told where the last one cannot write its shard, and the first not hf/."""
    backend = sharded(comm, config(), make(seed=5))
    told = []

    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with unittest.mock.patch("os.fsync", refuse if comm.rank == comm.world - 1 else os.fsync):
        try:
            backend.save(f"{folder}/state")
        except NotWritten as error:
            told.append(str(error))
    if comm.rank == 0:
        backend.module.save_pretrained = refuse
    try:
        backend.export(f"{folder}/hf", None, None)
    except NotWritten as error:
        told.append(str(error))
    return told


def load(comm: Communicator, folder: str, plan: dict[str, Any]) -> Any:
    """Weights after a load into another model, and the update that followed the save."""
    mine = share(rollouts(), comm.rank, comm.world)
    backend = sharded(comm, config(), make(seed=2))
    backend.load(f"{folder}/state")
    assert backend.optimizer is not None
    assert (backend.optimizer.updates, backend.optimizer.skipped) == (4, 0)
    train(backend, config(), mine)
    return sendable(weights_of(backend.module))


def adapters(comm: Communicator, folder: str, plan: dict[str, Any]) -> Any:
    """Log-probs of the base, of the trained adapters and without them, and the merged weights as a
    Resharder gives them."""
    mine = share(rollouts(), comm.rank, comm.world).keep("ids", "mask")
    base = Passes(make(), Sharding(dtype="float64"), TEMPERATURE).log_probs(mine)
    module = add_adapters(make(), roles.Lora(rank=5, alpha=8.0), seed=3)
    backend = sharded(comm, config(), module)
    before = backend.log_probs(mine)
    merged = merged_tensors(module)
    resharder = Resharder(merged, f"fsdp2({comm.world})", f"replicated({comm.world})", comm=comm)
    for _ in range(2):
        backend.update(mine, NextTokenLoss())
    merged_tensors(module, merged)
    whole = {name: tensor.detach().clone() for name, tensor in resharder.run().items()}
    after = backend.log_probs(mine)
    without = backend.log_probs(mine, base=True)
    trained = {name for name, each in module.named_parameters() if each.requires_grad}
    assert trained and all(".lora_" in name for name in trained)
    fresh = make(seed=2)
    missing = fresh.load_state_dict(whole, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}
    merged_pass = Passes(fresh, Sharding(dtype="float64"), TEMPERATURE).log_probs(mine)
    return [each.numpy() for each in (base, before, without, after, merged_pass)]
