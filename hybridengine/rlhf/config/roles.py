"""roles: the sections of the config that say how a role computes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hybridengine.rlhf.config.fields import Section


class Optimizer(Section):
    betas: list[float] = Field([0.9, 0.999], description="decay of AdamW's two moments")
    eps: float = Field(1e-8, gt=0, description="added to the root of AdamW's second moment")
    weight_decay: float = Field(0.01, ge=0, description="decoupled weight decay")
    warmup_steps: int = Field(
        0, ge=0, description="updates over which the learning rate rises from 0"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="after the warm-up"
    )
    grad_clip: float | None = Field(
        1.0, gt=0, description="largest norm of the gradient; null: no clipping"
    )


class Lora(Section):
    enable: bool = Field(False, description="train low-rank adapters instead of all weights")
    rank: int = Field(64, ge=1, description="rank of the adapters")
    alpha: float = Field(128.0, gt=0, description="adapters are scaled by alpha / rank")
    dropout: float = Field(0.0, ge=0, le=0.999, description="dropout before an adapter")
    target_modules: list[str] = Field(
        [], description="names of layers with adapters; empty: every linear layer"
    )


class Sharding(Section):
    """How a model that trains is held; shared by actor and critic."""

    strategy: Literal["auto", "fsdp2", "megatron"] = Field(
        "auto", description="auto: megatron from 70 billion weights, else fsdp2"
    )
    dtype: Literal["float32", "bfloat16", "float64"] = Field(
        "float32", description="of activations; weights step as float32 or more"
    )
    param_dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="of the shards; bfloat16: AdamW holds float32 weights beside them",
    )
    param_offload: bool = Field(
        False, description="keep shards in host memory and bring in a layer at a time"
    )
    optimizer_offload: bool = Field(
        False, description="keep the optimizer's state in host memory between updates"
    )
    min_num_params: int = Field(
        0,
        ge=0,
        description="weights from which a decoder layer is an FSDP2 unit of its own; 0: every one",
    )
    activation_checkpointing: bool = Field(
        True, description="recompute decoder layers in the backward pass"
    )
    sequence_packing: bool = Field(
        True, description="run rows without padding, attention within each row"
    )
    max_tokens_per_gpu: int = Field(16384, ge=1, description="tokens of a micro-batch of one rank")
    sync_every: int = Field(1, ge=1, description="micro-batches between reductions of gradients")
    compile: bool = Field(False, description="compile decoder layers with torch.compile")


class Actor(Sharding):
    lr: float = Field(1e-6, gt=0, description="learning rate after the warm-up")
    optimizer: Optimizer = Field(
        Optimizer(), description="the rest of AdamW; actor.lr is its learning rate"
    )
    ppo_epochs: int = Field(4, ge=1, description="passes over the rollouts of a step")
    ppo_mini_batch_size: int = Field(128, ge=1, description="prompts of one optimizer step")
    lora: Lora = Field(Lora(), description="low-rank adapters")


class Critic(Sharding):
    path: str | None = Field(
        None, description="directory or hub id of its HF checkpoint; null: the actor's"
    )
    lr: float = Field(1e-5, gt=0, description="learning rate after the warm-up")
    optimizer: Optimizer = Field(
        Optimizer(), description="the rest of AdamW; critic.lr is its learning rate"
    )
    ppo_epochs: int = Field(4, ge=1, description="passes over the rollouts of a step")
    warmup_steps: int = Field(
        0, ge=0, description="steps at the start in which only the critic learns"
    )


class Reference(Section):
    path: str | None = Field(
        None,
        description="directory or hub id of its HF checkpoint; null: the actor at first",
    )
    param_offload: bool = Field(
        False, description="keep shards in host memory and bring in a layer at a time"
    )


class RewardModel(Section):
    path: str | None = Field(
        None, description="directory or hub id of a sequence-classification checkpoint; null: none"
    )
    strategy: Literal["auto", "fsdp2", "megatron"] = Field("auto", description="as actor.strategy")
    dtype: Literal["float32", "bfloat16", "float64"] = Field(
        "float32", description="of its weights and activations"
    )
    tp_size: int = Field(
        1, ge=1, description="ranks that share its layers; 1: FSDP2 over all ranks"
    )
    offload: bool = Field(
        False, description="keep shards in host memory and bring in a layer at a time"
    )
    weight: float = Field(1.0, description="of its score in the sum of rewards")


class Rollout(Section):
    n: int = Field(1, ge=1, description="responses per prompt")
    temperature: float = Field(1.0, gt=0, description="logits are divided by it before sampling")
    top_p: float = Field(
        1.0, gt=0, le=1, description="sample among the likeliest tokens that add up to it"
    )
    top_k: int = Field(0, ge=0, description="sample among this many likeliest tokens; 0: all")
    stop: list[str] = Field([], description="texts that end a response; they stay in it")
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field(
        [],
        description="tokens that end a response, besides those of the tokenizer and the checkpoint",
    )
    min_tokens: int = Field(
        0, ge=0, description="tokens that a response has before one that ends it"
    )
    ignore_eos: bool = Field(
        False,
        description="do not end a response at the end tokens of the tokenizer and the checkpoint",
    )
    max_model_len: int = Field(
        4096, ge=2, description="tokens of prompt and response that the engine has room for"
    )
    max_num_seqs: int = Field(256, ge=1, description="sequences that one engine runs at a time")
    dtype: Literal["float32", "bfloat16", "float64"] = Field(
        "float32", description="of the weights that generate"
    )
    tp_size: int = Field(1, ge=1, description="ranks that share the layers of one engine")
    gpu_memory_utilization: float = Field(
        0.9,
        gt=0,
        le=1,
        description="share of the device's memory that an engine may take for its cache",
    )
    sleep: Literal["host", "drop"] = Field(
        "host",
        description="the weights that generate, while their ranks train: host: stay in host memory;"
        " drop: are given back until the next reshard",
    )
    reshard_threshold: float = Field(
        0.8,
        gt=0,
        le=1,
        description=(
            "share of memory in use above which training state is offloaded before generating"
        ),
    )
    engine: Literal["builtin"] = Field("builtin", description="what generates")
    engine_options: dict[str, Any] = Field({}, description="passed on to the engine")
