"""schema: every key that `hybridengine train` takes, with its default, in sections.

Defaults are those of published runs on real models; the demo preset overrides them. What a value
must satisfy together with others is in checks.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hybridengine.rlhf.config.fields import Named, Section
from hybridengine.rlhf.config.records import EnvironmentRecord, EvalSet, Evaluation, Pool
from hybridengine.rlhf.config.roles import Actor, Critic, Reference, RewardModel, Rollout

# The built-in formulas, in the order of hybridengine.rlhf.algorithms.
ADVANTAGES = ("gae", "grpo", "rloo", "reinforce++", "reinforce++-baseline", "remax")
POLICY_LOSSES = ("clip", "gspo", "cispo")


class Run(Section):
    name: str | None = Field(
        None, description="folder below run.dir; null: named by preset and time"
    )
    dir: str = Field("runs", description="folder in which runs are kept")
    resume: bool = Field(
        False, description="continue from the newest whole checkpoint of the run of this name"
    )


class Model(Section):
    path: str | None = Field(
        None, description="directory or hub id of a HF checkpoint, or smollm2-135m"
    )
    tokenizer: str | None = Field(
        None, description="directory or hub id of a HF tokenizer; null: model.path"
    )
    chat_template: str | None = Field(
        None, description="file with a Jinja chat template; null: the tokenizer's"
    )
    config: dict[str, Any] = Field(
        {}, description="a HF config (model_type, ...) for random weights instead of a path"
    )


class Gym(Section):
    """A reasoning-gym generator instead of files."""

    name: str | None = Field(
        None, description="reasoning-gym generator, e.g. chain_sum; null: files are read"
    )
    size: int = Field(10000, ge=1, description="samples that it makes")
    options: dict[str, Any] = Field({}, description="options of the generator")
    prompt_key: str = Field(
        "question", description="prompt: question, a key of the metadata, or a format over both"
    )


class Data(Section):
    train_files: list[str] = Field(
        [], description="parquet or JSONL files, directories of HF datasets, or hub ids of datasets"
    )
    eval_files: list[str] = Field([], description="the same for evaluation; empty: no evaluation")
    mode: Literal["online", "offline"] = Field(
        "online", description="offline: responses come from the files"
    )
    gym: Gym = Field(Gym(), description="generated tasks")
    eval_size: int = Field(
        128, ge=1, description="generated tasks of the evaluation, made with another seed"
    )
    eval_share: float = Field(
        0.1,
        ge=0,
        le=0.5,
        description="prompts that train-reward holds out, where it has no eval_files",
    )
    prompt_key: str = Field(
        "prompt", description="column with the prompt: text, or a list of chat messages"
    )
    response_key: str = Field(
        "response", description="column with the response (offline and supervised)"
    )
    ground_truth_key: str = Field("ground_truth", description="column that rewards compare with")
    data_source_key: str = Field(
        "data_source", description="column that says where a sample is from"
    )
    extra_key: str = Field("extra", description="column with whatever a reward needs besides")
    chosen_key: str = Field("chosen", description="column with the better answer (pairs)")
    rejected_key: str = Field("rejected", description="column with the worse answer (pairs)")
    apply_chat_template: Literal["auto", "always", "never"] = Field(
        "auto", description="auto: to lists of messages only"
    )
    train_batch_size: int = Field(512, ge=1, description="prompts of a step")
    max_prompt_length: int = Field(
        1024, ge=1, description="tokens; longer prompts are left out or refused"
    )
    max_response_length: int = Field(512, ge=1, description="tokens that a response may have")
    overlong_prompts: Literal["filter", "error"] = Field(
        "filter", description="what to do with them"
    )
    shuffle: bool = Field(
        True, description="another order in every epoch, the same for the same seed"
    )


class Reward(Section):
    functions: list[Literal["exact_match", "format", "gym", "length", "math"]] = Field(
        ["exact_match"], description="rewards, added up"
    )
    weights: list[float] = Field([], description="one weight for each function; empty: all 1")
    function: str | None = Field(
        None, description="path.py:name of a reward of your own, added to the others"
    )
    function_weight: float = Field(1.0, description="weight of reward.function")
    options: dict[str, Any] = Field(
        {}, description="options by name of the reward: {length: {target: 100}}"
    )
    workers: int = Field(1, ge=1, description="processes that compute rewards")
    timeout_s: float = Field(
        10.0, gt=0, description="seconds for one sample, then its process is replaced"
    )
    on_error: Literal["zero", "raise"] = Field(
        "zero",
        description=(
            "a reward that fails: score 0, or end the run; "
            "it ends where all samples of a step failed"
        ),
    )


class Kl(Section):
    where: Literal["reward", "loss", "none"] = Field(
        "reward", description="what the KL is added to"
    )
    estimator: Literal["k1", "k2", "k3"] | None = Field(
        None, description="estimator of the KL; null: k1 in the reward, k2 in the loss"
    )
    unbiased_gradient: bool = Field(
        False, description="in the loss: the gradient of the KL itself in expectation"
    )
    controller: Literal["fixed", "adaptive"] = Field("fixed", description="what steers kl_coef")
    target: float = Field(6.0, gt=0, description="KL that the adaptive controller steers to")
    horizon: float = Field(
        10000.0, gt=0, description="samples in which the adaptive controller answers"
    )
    limit: float | None = Field(
        None, gt=0, description="mean KL of an update above which its step ends early"
    )


class Algorithm(Section):
    advantage: Annotated[str, Named(ADVANTAGES)] = Field(
        "gae", description="estimator of the advantage"
    )
    gamma: float = Field(1.0, ge=0, le=1, description="discount per trainable token")
    lam: float = Field(0.95, ge=0, le=1, description="lambda of GAE")
    normalize_advantages: bool = Field(True, description="whiten advantages over all ranks (gae)")
    scale_advantages: bool = Field(
        True, description="divide by the standard deviation of the group (grpo)"
    )
    policy_loss: Annotated[str, Named(POLICY_LOSSES)] = Field(
        "clip", description="loss of the policy"
    )
    clip_ratio: float = Field(
        0.2, gt=0, le=1, description="bound of the ratio on both sides (clip)"
    )
    clip_ratio_low: float | None = Field(
        None,
        gt=0,
        le=1,
        description="lower bound, for clip instead of clip_ratio; null: that of the loss",
    )
    clip_ratio_high: float | None = Field(
        None,
        gt=0,
        description="upper bound, for clip instead of clip_ratio; null: that of the loss",
    )
    clip_ratio_c: float | None = Field(
        None,
        gt=1,
        description="bound of the loss where A < 0, as a ratio (dual clip); null: none (clip)",
    )
    value_loss: Literal["clip", "mse"] = Field("clip", description="loss of the critic")
    value_clip: float = Field(0.2, gt=0, description="range of the clipped value loss")
    loss_aggregation: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"] | None = (
        Field(
            None,
            description="of the losses of tokens; null: token-mean (gspo: seq-mean-token-mean)",
        )
    )
    truncated: Literal["terminal", "bootstrap", "mask"] = Field(
        "terminal",
        description=(
            "a response cut by its length ends there, goes on at its value (gae), or is left out"
        ),
    )
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy in the loss")
    kl_coef: float = Field(0.01, ge=0, description="weight of the KL to the reference")
    kl: Kl = Field(Kl(), description="the KL to the reference")
    rollout_correction: Literal["none", "token", "sequence"] | None = Field(
        None,
        description=(
            "truncated weights for rollout and trainer that differ; null: token with "
            "trainer.staleness, else none"
        ),
    )
    rollout_correction_cap: float = Field(2.0, gt=0, description="largest of these weights")
    group_filter: Literal["none", "dapo"] = Field(
        "none", description="dapo: leave out groups with equal scores, and sample more"
    )
    max_filter_rounds: int = Field(
        4, ge=1, description="generations of a step until its batch is full (dapo)"
    )
    short_batch: Literal["train", "error"] = Field(
        "train",
        description="a batch that they could not fill: train on what there is, or end the run",
    )
    overlong_buffer: int = Field(
        0, ge=0, description="tokens before the limit in which length is punished; 0: off"
    )
    overlong_factor: float = Field(1.0, ge=0, description="largest penalty for length")


class Trainer(Section):
    ranks: int = Field(2, ge=1, description="processes of the pool that trains")
    placement: Literal["colocate", "split", "standalone", "auto"] = Field(
        "colocate",
        description=(
            "colocate: one pool; split: critic and reward model apart; standalone: a pool a role"
        ),
    )
    rollout_ranks: int = Field(
        1, ge=1, description="processes of the rollout's own pool (standalone)"
    )
    aux_ranks: int = Field(1, ge=1, description="processes of the other pools (split, standalone)")
    staleness: int = Field(
        0,
        ge=0,
        le=1,
        description=(
            "steps that the weights which generate are behind; 1: the next responses are made, on "
            "ranks of their own, while the learner trains"
        ),
    )
    steps: int | None = Field(
        None, ge=1, description="steps after which training ends; null: by epochs"
    )
    epochs: int = Field(1, ge=1, description="passes over the data, unless steps says otherwise")
    time_limit_s: float | None = Field(
        None, gt=0, description="seconds after which the run ends in good order"
    )
    eval_interval: int = Field(1000, ge=0, description="steps between evaluations; 0: none")
    eval_before: bool = Field(True, description="evaluate before the first step")
    save_interval: int = Field(
        0, ge=0, description="steps between checkpoints, with one at the end; 0: none"
    )
    keep_checkpoints: int = Field(1, ge=1, description="how many resumable checkpoints are kept")
    save_hf: bool = Field(True, description="write a HF checkpoint at the end")
    hf_dtype: Literal["checkpoint", "float32", "bfloat16", "float16"] = Field(
        "checkpoint",
        description=(
            "type of the weights in hf/; checkpoint: that of the model which training began with"
        ),
    )
    save_rollouts: bool = Field(
        False,
        description="keep the responses trained on in rollouts/, with scores, ids and log-probs",
    )
    loggers: list[Literal["console", "jsonl", "tensorboard", "wandb"]] = Field(
        ["console", "jsonl", "tensorboard"], description="where metrics go"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description=(
            "auto: the CPU, since weights are moved in host memory; cuda: only where none are moved"
        ),
    )
    peak_tflops: float | None = Field(
        None,
        gt=0,
        description=(
            "10^12 FLOPs a second that a rank can reach, for flops_share; "
            "null: measured by a product of large matrices"
        ),
    )


class Wandb(Section):
    project: str = Field("hybridengine", description="project of the run")
    entity: str | None = Field(None, description="team; null: your own")
    mode: Literal["offline", "online"] = Field(
        "offline", description="offline keeps everything in the run's folder"
    )


class Cluster(Section):
    address: str | None = Field(
        None, description="of a running Ray cluster, or auto; null: a local one is started"
    )
    placement_timeout_s: float = Field(
        30.0, gt=0, description="seconds in which every rank must have got its place"
    )
    cpus_per_rank: float = Field(1.0, ge=0, description="CPUs that Ray reserves for a rank")
    timeout_s: float = Field(
        600.0, gt=0, description="seconds without progress of a rank after which the run ends"
    )


class Warmup(Section):
    """A short supervised phase before the first step."""

    steps: int = Field(0, ge=0, description="optimizer steps; 0: none")
    batch_size: int = Field(128, ge=1, description="samples of a step")
    lr: float = Field(1e-3, gt=0, description="learning rate")


class Config(Section):
    preset: Literal["none", "demo"] = Field("none", description="values that the rest overrides")
    seed: int = Field(0, ge=0, description="of data order, sampling and new weights")
    run: Run = Field(Run(), description="where a run is kept")
    model: Model = Field(Model(), description="the model that learns")
    data: Data = Field(Data(), description="prompts")
    evaluation: Evaluation = Field(
        Evaluation(), description="how prompts are answered that nothing is trained on"
    )
    eval_sets: dict[str, EvalSet] = Field(
        {}, description="more prompts to evaluate on than those of data, by name"
    )
    warmup: Warmup = Field(Warmup(), description="supervised phase before the first step")
    actor: Actor = Field(Actor(), description="the policy, as it trains")
    critic: Critic = Field(Critic(), description="the value model (gae)")
    reference: Reference = Field(Reference(), description="the policy that the KL is measured to")
    rollout: Rollout = Field(Rollout(), description="generation")
    reward: Reward = Field(Reward(), description="reward functions")
    reward_model: RewardModel = Field(RewardModel(), description="a model that scores")
    algorithm: Algorithm = Field(Algorithm(), description="from scores to losses")
    trainer: Trainer = Field(Trainer(), description="steps, placement, checkpoints, logs")
    pools: dict[str, Pool] = Field(
        {}, description="a pool of ranks, by name; none: trainer.placement says which there are"
    )
    environments: dict[str, EnvironmentRecord] = Field(
        {}, description="what answers the policy between its responses (multi-turn), by label"
    )
    wandb: Wandb = Field(Wandb(), description="Weights & Biases")
    cluster: Cluster = Field(Cluster(), description="Ray")
