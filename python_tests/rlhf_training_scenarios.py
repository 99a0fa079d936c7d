"""Models of a few thousand weights, rollouts without meaning, and what ranks do with both."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from hybridengine import Communicator
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config import roles
from hybridengine.rlhf.config.schema import Config, Model
from hybridengine.rlhf.training.models import build_model
from hybridengine.rlhf.training.optimizer import ShardedAdamW
from hybridengine.rlhf.training.passes import Passes
from hybridengine.rlhf.training.ppo import PolicyUpdate, ValueUpdate
from hybridengine.rlhf.training.sharding import shard

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
    passes = Passes(module, role, TEMPERATURE, comm=comm)
    optimizer = ShardedAdamW(module, role.optimizer, role.lr, comm=comm)
    make_update = PolicyUpdate if kind == "policy" else ValueUpdate
    metrics = make_update(passes, optimizer, made, comm).update(batch)
    return metrics, weights_of(module)


def start(comm: Communicator, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=comm.rank, world_size=comm.world
    )


def share(batch: Batch, rank: int, world: int) -> Batch:
    """Rows of one rank: uneven, and with more than two ranks the last has none."""
    parts = max(1, world - 1) if world > 2 else world
    return batch.select([i for i in range(len(batch)) if i % parts == rank] if rank < parts else [])


Result = tuple[dict[str, float], dict[str, torch.Tensor]]


def update_on_ranks(
    comm: Communicator, folder: str, cases: list[tuple[str, dict[str, Any]]]
) -> list[Result]:
    """One update for each kind of model with options of sharding."""
    start(comm, folder)
    mine = share(rollouts(), comm.rank, comm.world)
    results = [update(config(**options), mine, comm=comm, kind=kind) for kind, options in cases]
    dist.destroy_process_group()
    return [sendable(result) for result in results]


def sendable(result: Result) -> Any:
    """Arrays outlive the process that made them."""
    return result[0], {name: value.numpy() for name, value in result[1].items()}


def stop_on_ranks(comm: Communicator, folder: str, batch: Batch, limit: float) -> Result:
    """An update that ends early by the KL of all ranks; and log-probs with and without gradient."""
    start(comm, folder)
    made = config(ppo_epochs=1)
    made.algorithm.kl.limit = limit
    result = update(made, share(batch, comm.rank, comm.world), comm=comm)
    dist.destroy_process_group()
    return sendable(result)


def mixed_on_ranks(comm: Communicator, folder: str) -> list[dict[str, float]]:
    """Types and options that real runs use: the ratio before the first step is exactly 1."""
    start(comm, folder)
    found = []
    for dtype, options in (
        ("float32", {}),
        ("bfloat16", {"max_tokens_per_gpu": 12, "activation_checkpointing": True}),
    ):
        made = config(dtype=dtype, **options)
        module = make(dtype=torch.float32)
        shard(module, made.actor, init_device_mesh("cpu", (comm.world,)))
        passes = Passes(module, made.actor, TEMPERATURE, comm=comm)
        optimizer = ShardedAdamW(module, made.actor.optimizer, made.actor.lr, comm=comm)
        mine = share(rollouts(), comm.rank, comm.world)
        mine = mine.with_tokens(old_log_probs=passes.log_probs(mine))
        found.append(PolicyUpdate(passes, optimizer, made, comm).update(mine))
        types = {parameter.dtype for parameter in module.parameters()}
        assert types == {torch.float32}, types
    dist.destroy_process_group()
    return found
