"""roles: the sections of the config that say how a role computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybridengine.rlhf.config.fields import key, section

_STRATEGIES = ("auto", "fsdp2", "megatron")
_DTYPES = ("float32", "bfloat16", "float64")


@dataclass
class Optimizer:
    lr: float = 1e-6  # no key of its own: loading sets it to that of the role
    betas: list[float] = key([0.9, 0.999], "decay of AdamW's two moments")
    eps: float = key(1e-8, "added to the root of AdamW's second moment", above=0)
    weight_decay: float = key(0.01, "decoupled weight decay", least=0)
    warmup_steps: int = key(0, "updates over which the learning rate rises from 0", least=0)
    schedule: str = key("constant", "after the warm-up", choices=("constant", "linear", "cosine"))
    grad_clip: float | None = key(1.0, "largest norm of the gradient; null: no clipping", above=0)


@dataclass
class Lora:
    enable: bool = key(False, "train low-rank adapters instead of all weights")
    rank: int = key(64, "rank of the adapters", least=1)
    alpha: float = key(128.0, "adapters are scaled by alpha / rank", above=0)
    dropout: float = key(0.0, "dropout before an adapter", least=0, most=0.999)
    target_modules: list[str] = key([], "names of layers with adapters; empty: every linear layer")


@dataclass
class Sharding:
    """How a model that trains is held; shared by actor and critic."""

    strategy: str = key(
        "auto", "auto: megatron from 70 billion weights, else fsdp2", choices=_STRATEGIES
    )
    dtype: str = key(
        "float32", "of activations; the weights that step stay float32", choices=_DTYPES
    )
    param_offload: bool = key(False, "keep shards in host memory and bring in a layer at a time")
    optimizer_offload: bool = key(
        False, "keep the optimizer's state in host memory between updates"
    )
    min_num_params: int = key(
        0, "weights from which a decoder layer is an FSDP2 unit of its own; 0: every one", least=0
    )
    activation_checkpointing: bool = key(False, "recompute decoder layers in the backward pass")
    sequence_packing: bool = key(True, "run rows without padding, attention within each row")
    max_tokens_per_gpu: int = key(16384, "tokens of a micro-batch of one rank", least=1)
    sync_every: int = key(4, "micro-batches between reductions of gradients", least=1)
    compile: bool = key(False, "compile decoder layers with torch.compile")


@dataclass
class Actor(Sharding):
    lr: float = key(1e-6, "learning rate after the warm-up", above=0)
    optimizer: Optimizer = section(Optimizer, "the rest of AdamW; actor.lr is its learning rate")
    ppo_epochs: int = key(4, "passes over the rollouts of a step", least=1)
    ppo_mini_batch_size: int = key(128, "prompts of one optimizer step", least=1)
    lora: Lora = section(Lora, "low-rank adapters")


@dataclass
class Critic(Sharding):
    path: str | None = key(None, "directory of its HF checkpoint; null: the actor's")
    lr: float = key(1e-5, "learning rate after the warm-up", above=0)
    optimizer: Optimizer = section(Optimizer, "the rest of AdamW; critic.lr is its learning rate")
    ppo_epochs: int = key(4, "passes over the rollouts of a step", least=1)
    warmup_steps: int = key(0, "steps at the start in which only the critic learns", least=0)


@dataclass
class Reference:
    path: str | None = key(None, "directory of its HF checkpoint; null: the actor before training")
    param_offload: bool = key(False, "keep shards in host memory and bring in a layer at a time")


@dataclass
class RewardModel:
    path: str | None = key(
        None, "directory of a sequence-classification checkpoint; null: no reward model"
    )
    strategy: str = key("auto", "as actor.strategy", choices=_STRATEGIES)
    tp_size: int = key(1, "ranks that share its layers; 1: FSDP2 over all ranks", least=1)
    offload: bool = key(False, "keep shards in host memory and bring in a layer at a time")
    weight: float = key(1.0, "of its score in the sum of rewards")


@dataclass
class Rollout:
    n: int = key(1, "responses per prompt", least=1)
    temperature: float = key(1.0, "logits are divided by it before sampling", above=0)
    top_p: float = key(1.0, "sample among the likeliest tokens that add up to it", above=0, most=1)
    top_k: int = key(0, "sample among this many likeliest tokens; 0: all", least=0)
    stop: list[str] = key([], "texts that end a response; they stay in it")
    stop_token_ids: list[int] = key(
        [], "tokens that end a response, besides those of the tokenizer and the checkpoint", least=0
    )
    min_tokens: int = key(0, "tokens that a response has before one that ends it", least=0)
    ignore_eos: bool = key(
        False, "do not end a response at the end tokens of the tokenizer and the checkpoint"
    )
    max_model_len: int = key(
        4096, "tokens of prompt and response that the engine has room for", least=2
    )
    max_num_seqs: int = key(256, "sequences that one engine runs at a time", least=1)
    dtype: str = key("float32", "of the weights that generate", choices=_DTYPES)
    tp_size: int = key(1, "ranks that share the layers of one engine", least=1)
    gpu_memory_utilization: float = key(
        0.9, "share of the device's memory that an engine may take for its cache", above=0, most=1
    )
    reshard_threshold: float = key(
        0.8,
        "share of memory in use above which training state is offloaded before generating",
        above=0,
        most=1,
    )
    engine: str = key("builtin", "what generates", choices=("builtin",))
    engine_options: dict[str, Any] = key({}, "passed on to the engine")
