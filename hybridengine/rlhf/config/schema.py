"""schema: every key that `hybridengine train` takes, with its default, in sections.

Defaults are those of published runs on real models; the demo preset overrides them. What a value
must satisfy together with others is in checks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybridengine.rlhf.config.fields import key, section
from hybridengine.rlhf.config.presets import PRESETS
from hybridengine.rlhf.config.roles import Actor, Critic, Reference, RewardModel, Rollout


@dataclass
class Run:
    name: str | None = key(None, "folder below run.dir; null: named by preset and time")
    dir: str = key("runs", "folder in which runs are kept")
    resume: bool = key(False, "continue from the newest whole checkpoint of the run of this name")


@dataclass
class Model:
    path: str | None = key(None, "directory of a HF checkpoint, or smollm2-135m")
    tokenizer: str | None = key(None, "directory of a HF tokenizer; null: model.path")
    chat_template: str | None = key(None, "file with a Jinja chat template; null: the tokenizer's")
    config: dict[str, Any] = key(
        {}, "a HF config (model_type, ...) for random weights instead of a path"
    )


@dataclass
class Gym:
    """A reasoning-gym generator instead of files."""

    name: str | None = key(None, "reasoning-gym generator, e.g. chain_sum; null: files are read")
    size: int = key(10000, "samples that it makes", least=1)
    options: dict[str, Any] = key({}, "options of the generator")
    prompt_key: str = key(
        "question", "prompt: question, a key of the metadata, or a format over both"
    )


@dataclass
class Data:
    train_files: list[str] = key([], "parquet or JSONL files, or directories of HF datasets")
    eval_files: list[str] = key([], "the same for evaluation; empty: no evaluation")
    mode: str = key(
        "online", "offline: responses come from the files", choices=("online", "offline")
    )
    gym: Gym = section(Gym, "generated tasks")
    eval_size: int = key(128, "generated tasks of the evaluation, made with another seed", least=1)
    eval_share: float = key(
        0.1, "prompts that train-reward holds out, where it has no eval_files", least=0, most=0.5
    )
    prompt_key: str = key("prompt", "column with the prompt: text, or a list of chat messages")
    response_key: str = key("response", "column with the response (offline and supervised)")
    ground_truth_key: str = key("ground_truth", "column that rewards compare with")
    data_source_key: str = key("data_source", "column that says where a sample is from")
    extra_key: str = key("extra", "column with whatever a reward needs besides")
    chosen_key: str = key("chosen", "column with the better answer (pairs)")
    rejected_key: str = key("rejected", "column with the worse answer (pairs)")
    apply_chat_template: str = key(
        "auto", "auto: to lists of messages only", choices=("auto", "always", "never")
    )
    train_batch_size: int = key(512, "prompts of a step", least=1)
    max_prompt_length: int = key(1024, "tokens; longer prompts are left out or refused", least=1)
    max_response_length: int = key(512, "tokens that a response may have", least=1)
    overlong_prompts: str = key("filter", "what to do with them", choices=("filter", "error"))
    shuffle: bool = key(True, "another order in every epoch, the same for the same seed")


@dataclass
class Reward:
    functions: list[str] = key(["exact_match"], "names of rewards, added up")
    weights: list[float] = key([], "one weight for each function; empty: all 1")
    function: str | None = key(None, "path.py:name of a reward of your own, added to the others")
    function_weight: float = key(1.0, "weight of reward.function")
    options: dict[str, Any] = key({}, "options by name of the reward: {length: {target: 100}}")
    workers: int = key(1, "processes that compute rewards", least=1)
    timeout_s: float = key(10.0, "seconds for one sample, then its process is replaced", above=0)
    on_error: str = key(
        "zero",
        "a reward that fails: score 0, or end the run; it ends where all samples of a step failed",
        choices=("zero", "raise"),
    )


@dataclass
class Kl:
    where: str = key("reward", "what the KL is added to", choices=("reward", "loss", "none"))
    estimator: str | None = key(
        None,
        "estimator of the KL; null: k1 in the reward, k2 in the loss",
        choices=("k1", "k2", "k3"),
    )
    unbiased_gradient: bool = key(
        False, "in the loss: the gradient of the KL itself in expectation"
    )
    controller: str = key("fixed", "what steers kl_coef", choices=("fixed", "adaptive"))
    target: float = key(6.0, "KL that the adaptive controller steers to", above=0)
    horizon: float = key(10000.0, "samples in which the adaptive controller answers", above=0)
    limit: float | None = key(None, "mean KL of an update above which its step ends early", above=0)


@dataclass
class Algorithm:
    advantage: str = key(
        "gae", "estimator: gae, grpo, rloo, reinforce++, reinforce++-baseline or remax"
    )
    gamma: float = key(1.0, "discount per trainable token", least=0, most=1)
    lam: float = key(0.95, "lambda of GAE", least=0, most=1)
    normalize_advantages: bool = key(True, "whiten advantages over all ranks (gae)")
    scale_advantages: bool = key(True, "divide by the standard deviation of the group (grpo)")
    policy_loss: str = key("clip", "clip, gspo or cispo")
    clip_ratio: float = key(0.2, "bound of the ratio on both sides (clip)", above=0, most=1)
    clip_ratio_low: float | None = key(
        None, "lower bound, for clip instead of clip_ratio; null: that of the loss", above=0, most=1
    )
    clip_ratio_high: float | None = key(
        None, "upper bound, for clip instead of clip_ratio; null: that of the loss", above=0
    )
    clip_ratio_c: float | None = key(
        None, "bound of the loss where A < 0, as a ratio (dual clip); null: none (clip)", above=1
    )
    value_loss: str = key("clip", "loss of the critic", choices=("clip", "mse"))
    value_clip: float = key(0.2, "range of the clipped value loss", above=0)
    loss_aggregation: str | None = key(
        None,
        "token-mean, seq-mean-token-sum, seq-mean-token-mean; null: the first (gspo: the last)",
    )
    truncated: str = key(
        "terminal",
        "a response cut by its length ends there, goes on at its value (gae), or is left out",
        choices=("terminal", "bootstrap", "mask"),
    )
    entropy_coef: float = key(0.0, "weight of the entropy in the loss", least=0)
    kl_coef: float = key(0.01, "weight of the KL to the reference", least=0)
    kl: Kl = section(Kl, "the KL to the reference")
    rollout_correction: str = key(
        "none",
        "truncated weights for engine and trainer that differ",
        choices=("none", "token", "sequence"),
    )
    rollout_correction_cap: float = key(2.0, "largest of these weights", above=0)
    group_filter: str = key(
        "none", "none, or dapo: leave out groups with equal scores, and sample more"
    )
    max_filter_rounds: int = key(4, "generations of a step until its batch is full (dapo)", least=1)
    short_batch: str = key(
        "train",
        "a batch that they could not fill: train on what there is, or end the run",
        choices=("train", "error"),
    )
    overlong_buffer: int = key(
        0, "tokens before the limit in which length is punished; 0: off", least=0
    )
    overlong_factor: float = key(1.0, "largest penalty for length", least=0)


@dataclass
class Trainer:
    ranks: int = key(2, "processes of the pool that trains", least=1)
    placement: str = key(
        "colocate",
        "colocate: one pool; split: critic and reward model apart; standalone: a pool a role",
        choices=("colocate", "split", "standalone", "auto"),
    )
    rollout_ranks: int = key(1, "processes of the rollout's own pool (standalone)", least=1)
    aux_ranks: int = key(1, "processes of the other pools (split, standalone)", least=1)
    steps: int | None = key(None, "steps after which training ends; null: by epochs", least=1)
    epochs: int = key(1, "passes over the data, unless steps says otherwise", least=1)
    time_limit_s: float | None = key(
        None, "seconds after which the run ends in good order", above=0
    )
    eval_interval: int = key(1000, "steps between evaluations; 0: none", least=0)
    eval_before: bool = key(True, "evaluate before the first step")
    save_interval: int = key(0, "steps between checkpoints, with one at the end; 0: none", least=0)
    keep_checkpoints: int = key(1, "how many resumable checkpoints are kept", least=1)
    save_hf: bool = key(True, "write a HF checkpoint at the end")
    hf_dtype: str = key(
        "checkpoint",
        "type of the weights in hf/; checkpoint: that of the model which training began with",
        choices=("checkpoint", "float32", "bfloat16", "float16"),
    )
    save_rollouts: bool = key(
        False, "keep the responses trained on in rollouts/, with scores, ids and log-probs"
    )
    loggers: list[str] = key(
        ["console", "jsonl", "tensorboard"], "console, jsonl, tensorboard, wandb"
    )
    device: str = key(
        "auto",
        "auto: the CPU, since weights are moved in host memory; cuda: only where none are moved",
        choices=("auto", "cpu", "cuda"),
    )


@dataclass
class Wandb:
    project: str = key("hybridengine", "project of the run")
    entity: str | None = key(None, "team; null: your own")
    mode: str = key(
        "offline", "offline keeps everything in the run's folder", choices=("offline", "online")
    )


@dataclass
class Cluster:
    address: str | None = key(
        None, "of a running Ray cluster, or auto; null: a local one is started"
    )
    placement_timeout_s: float = key(
        30.0, "seconds in which every rank must have got its place", above=0
    )
    cpus_per_rank: float = key(1.0, "CPUs that Ray reserves for a rank", least=0)
    timeout_s: float = key(
        600.0, "seconds without progress of a rank after which the run ends", above=0
    )


@dataclass
class Warmup:
    """A short supervised phase before the first step."""

    steps: int = key(0, "optimizer steps; 0: none", least=0)
    batch_size: int = key(128, "samples of a step", least=1)
    lr: float = key(1e-3, "learning rate", above=0)


@dataclass
class Config:
    preset: str = key("none", "values that the rest overrides", choices=tuple(PRESETS))
    seed: int = key(0, "of data order, sampling and new weights", least=0)
    run: Run = section(Run, "where a run is kept")
    model: Model = section(Model, "the model that learns")
    data: Data = section(Data, "prompts")
    warmup: Warmup = section(Warmup, "supervised phase before the first step")
    actor: Actor = section(Actor, "the policy, as it trains")
    critic: Critic = section(Critic, "the value model (gae)")
    reference: Reference = section(Reference, "the policy that the KL is measured to")
    rollout: Rollout = section(Rollout, "generation")
    reward: Reward = section(Reward, "reward functions")
    reward_model: RewardModel = section(RewardModel, "a model that scores")
    algorithm: Algorithm = section(Algorithm, "from scores to losses")
    trainer: Trainer = section(Trainer, "steps, placement, checkpoints, logs")
    wandb: Wandb = section(Wandb, "Weights & Biases")
    cluster: Cluster = section(Cluster, "Ray")
