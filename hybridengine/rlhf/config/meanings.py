"""meanings: what other trainers call a key or a value, so that errors name ours.

The names are those of verl, TRL, OpenRLHF and transformers' Trainer. A name is looked up by its
last parts, the most parts first: `actor_rollout_ref.actor.optim.lr` is found as `optim.lr`. Nothing
here is accepted as a key; it only says which one was meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from hybridengine.wording import nearest

# Our key, then what others call it. A key of `actor` stands for that of the role that a name is of.
_KEYS: dict[str, tuple[str, ...]] = {
    "seed": ("data_seed", "random_seed"),
    "run.name": ("run_name", "experiment_name", "exp_name"),
    "run.dir": ("output_dir", "default_local_dir", "save_path", "ckpt_path", "logging_dir"),
    "run.resume": ("resume_mode", "resume_from_checkpoint", "load_checkpoint", "resume_from_path"),
    "model.path": ("model_name_or_path", "model_name", "pretrain", "base_model", "sft_model_path"),
    "model.tokenizer": ("tokenizer_path", "tokenizer_name", "tokenizer_name_or_path"),
    "model.chat_template": ("chat_template_path", "custom_chat_template"),
    "data.train_files": (
        *("prompt_data", "train_data", "train_file", "dataset_name", "dataset", "data_path"),
        "train_dataset",
    ),
    "data.eval_files": (
        *("val_files", "test_files", "eval_dataset", "eval_file", "eval_data"),
        "validation_files",
    ),
    "data.prompt_key": ("input_key", "prompt_column", "prompt_field"),
    "data.response_key": ("output_key", "completion_column", "response_column"),
    "data.ground_truth_key": ("label_key", "answer_key", "ground_truth_column"),
    "data.data_source_key": ("reward_fn_key",),
    "data.train_batch_size": (
        *("rollout_batch_size", "global_batch_size", "generation_batch_size", "gen_batch_size"),
        *("per_device_train_batch_size", "batch_size"),
    ),
    "data.max_prompt_length": ("max_prompt_len", "prompt_max_len", "rollout.prompt_length"),
    "data.max_response_length": (
        *("max_completion_length", "generate_max_len", "max_new_tokens", "response_length"),
        *("max_response_len", "rollout.max_tokens"),
    ),
    "data.overlong_prompts": ("filter_overlong_prompts", "truncation"),
    "evaluation.n": ("val_kwargs.n", "eval_n_samples_per_prompt"),
    "evaluation.temperature": (
        "val_kwargs.temperature",
        "val_kwargs.do_sample",
        "eval_temperature",
    ),
    "evaluation.top_p": ("val_kwargs.top_p",),
    "warmup.steps": ("sft_steps",),
    "actor.lr": ("learning_rate", "actor_learning_rate", "optim.lr"),
    "critic.lr": ("critic_learning_rate",),
    "actor.optimizer.weight_decay": ("optim.weight_decay", "l2"),
    "actor.optimizer.betas": ("adam_betas", "adam_beta1", "adam_beta2", "optim.betas"),
    "actor.optimizer.eps": ("adam_epsilon",),
    "actor.optimizer.grad_clip": ("max_grad_norm", "max_norm", "actor.grad_clip", "clip_grad"),
    "actor.optimizer.warmup_steps": (
        *("warmup_ratio", "lr_warmup_steps", "lr_warmup_ratio", "lr_warmup_steps_ratio"),
        "num_warmup_steps",
    ),
    "actor.optimizer.schedule": ("lr_scheduler_type", "lr_scheduler", "warmup_style"),
    "actor.ppo_epochs": ("num_ppo_epochs", "num_iterations", "max_epochs", "actor.epochs"),
    "actor.ppo_mini_batch_size": ("mini_batch_size", "num_mini_batches", "optim.batch_size"),
    "actor.max_tokens_per_gpu": (
        *("ppo_micro_batch_size_per_gpu", "ppo_micro_batch_size", "micro_train_batch_size"),
        *("micro_rollout_batch_size", "log_prob_micro_batch_size_per_gpu", "micro_batch_size"),
        *("log_prob_micro_batch_size", "ppo_max_token_len_per_gpu", "max_token_len_per_gpu"),
    ),
    "actor.activation_checkpointing": (
        *("gradient_checkpointing", "enable_gradient_checkpointing", "recompute"),
    ),
    "actor.sequence_packing": ("use_remove_padding", "packing_samples", "remove_padding"),
    "actor.param_offload": ("fsdp_config.param_offload", "cpu_offload", "adam_offload"),
    "actor.optimizer_offload": ("fsdp_config.optimizer_offload",),
    "actor.strategy": ("zero_stage", "fsdp", "deepspeed", "distributed_strategy"),
    "actor.dtype": ("bf16", "fp16", "param_dtype", "model_dtype", "torch_dtype", "precision"),
    "actor.compile": ("use_torch_compile", "torch_compile"),
    "actor.lora.enable": ("use_peft", "use_lora", "peft_config"),
    "actor.lora.rank": ("lora_rank", "lora_r"),
    "actor.lora.alpha": ("lora_alpha",),
    "actor.lora.dropout": ("lora_dropout",),
    "actor.lora.target_modules": ("lora_target_modules", "lora_target"),
    "critic.path": ("critic_pretrain", "value_model_path", "critic.model.path"),
    "critic.warmup_steps": ("critic_warmup", "freezing_actor_steps"),
    "reference.path": ("ref_model_path", "ref_model", "ref_pretrain"),
    "rollout.n": (
        *("actor_rollout_ref.rollout.n", "num_generations", "n_samples_per_prompt"),
        *("num_samples", "group_size"),
    ),
    "rollout.tp_size": (
        *("tensor_model_parallel_size", "tensor_parallel_size", "vllm_tensor_parallel_size"),
        "vllm_num_engines",
    ),
    "rollout.max_model_len": ("max_model_length", "vllm_max_model_length", "max_seq_len"),
    "rollout.gpu_memory_utilization": ("vllm_gpu_memory_utilization", "mem_fraction_static"),
    "rollout.engine": ("use_vllm", "rollout.name", "vllm_mode"),
    "rollout.stop": ("stop_strings", "stop_sequences", "stop_token"),
    "rollout.stop_token_ids": ("stop_ids", "eos_token_id", "eos_token_ids"),
    "rollout.min_tokens": ("min_new_tokens", "min_length", "generate_min_len"),
    "reward.functions": ("reward_funcs", "reward_manager", "reward_functions"),
    "reward.function": (
        *("custom_reward_function.path", "custom_reward_function.name", "remote_rm_url"),
        *("reward_fn", "reward_func"),
    ),
    "reward.weights": ("reward_weights",),
    "reward_model.path": (
        *("reward_pretrain", "reward_model_path", "reward_model.model.path"),
        "reward_model.enable",
    ),
    "algorithm.advantage": ("adv_estimator", "advantage_estimator"),
    "algorithm.scale_advantages": ("norm_adv_by_std_in_grpo", "scale_rewards"),
    "algorithm.normalize_advantages": ("whiten_rewards", "whiten_advantages"),
    "algorithm.policy_loss": ("loss_mode", "importance_sampling_level"),
    "algorithm.loss_aggregation": ("loss_agg_mode", "loss_type"),
    "algorithm.clip_ratio": ("cliprange", "clip_range", "eps_clip", "epsilon", "clip_eps"),
    "algorithm.clip_ratio_low": ("epsilon_low", "eps_clip_low", "clip_low"),
    "algorithm.clip_ratio_high": ("epsilon_high", "eps_clip_high", "clip_high"),
    "algorithm.clip_ratio_c": ("dual_clip_ratio", "dual_clip", "delta"),
    "algorithm.value_clip": ("cliprange_value", "vf_clip"),
    "algorithm.lam": ("lambd", "gae_lambda", "lambda"),
    "algorithm.truncated": (
        *("mask_truncated_completions", "overlong_filtering", "mask_truncated", "stop_properly"),
    ),
    "algorithm.entropy_coef": ("entropy_coeff", "entropy_loss_coef", "ent_coef"),
    "algorithm.kl_coef": ("beta", "init_kl_coef", "kl_loss_coef", "kl_beta"),
    "algorithm.kl.where": ("use_kl_loss", "use_kl_in_reward"),
    "algorithm.kl.estimator": ("kl_loss_type", "kl_penalty", "kl_estimator"),
    "algorithm.kl.controller": ("kl_ctrl.type", "kl_ctrl"),
    "algorithm.kl.target": ("target_kl", "kl_target"),
    "algorithm.kl.horizon": ("kl_horizon",),
    "algorithm.group_filter": ("filter_groups.enable", "filter_groups", "dynamic_filtering"),
    "algorithm.max_filter_rounds": ("max_num_gen_batches",),
    "algorithm.overlong_buffer": ("overlong_buffer.len", "overlong_buffer_len"),
    "algorithm.overlong_factor": ("overlong_buffer.penalty_factor", "overlong_penalty_factor"),
    "algorithm.rollout_correction": (
        *("rollout_is", "use_rollout_correction", "vllm_importance_sampling_correction"),
    ),
    "algorithm.rollout_correction_cap": (
        *("vllm_importance_sampling_cap", "tis_imp_ratio_cap", "rollout_is_threshold"),
    ),
    "trainer.ranks": (
        *("n_gpus_per_node", "nproc_per_node", "num_gpus", "world_size", "num_processes"),
        *("actor_num_gpus_per_node", "num_gpus_per_node"),
    ),
    "trainer.placement": ("colocate_all_models", "colocate_actor_ref", "hybrid_engine"),
    "trainer.steps": ("max_steps", "total_training_steps", "total_steps", "num_steps"),
    "trainer.epochs": ("num_train_epochs", "total_epochs", "num_episodes", "num_epochs"),
    "trainer.eval_interval": ("test_freq", "eval_steps", "eval_freq", "val_freq"),
    "trainer.eval_before": ("val_before_train", "eval_on_start"),
    "trainer.save_interval": ("save_freq", "save_steps", "checkpoint_interval"),
    "trainer.keep_checkpoints": (
        *("save_total_limit", "max_actor_ckpt_to_keep", "max_ckpt_num"),
        "max_critic_ckpt_to_keep",
    ),
    "trainer.save_hf": ("save_hf_ckpt",),
    "trainer.save_rollouts": ("rollout_data_dir", "log_completions"),
    "trainer.loggers": ("logger", "report_to", "use_wandb", "use_tensorboard"),
    "wandb.project": ("project_name", "wandb_project"),
    "wandb.entity": ("wandb_org", "wandb_entity"),
    "cluster.address": ("ray_address", "ray_init"),
}

# What others set and we do not, with what is done instead.
_ABSENT: dict[str, str] = {
    **dict.fromkeys(
        ("nnodes", "num_nodes"),
        "trainer.ranks counts the ranks of all hosts; cluster.address names the Ray to use",
    ),
    "use_dynamic_bsz": "micro-batches always fill up to actor.max_tokens_per_gpu",
    "gradient_accumulation_steps": (
        "a mini-batch, actor.ppo_mini_batch_size, is one optimizer step, in micro-batches of "
        "actor.max_tokens_per_gpu tokens"
    ),
    "steps_per_generation": "data.train_batch_size prompts are generated at a time",
    "per_device_eval_batch_size": "an evaluation takes rollout.max_num_seqs sequences at a time",
    "val_batch_size": "an evaluation takes all of data.eval_files at once",
    "ulysses_sequence_parallel_size": "sequences are not cut over ranks",
    "pipeline_model_parallel_size": "layers are not spread over ranks in a pipeline",
    "logging_steps": "every step is logged",
    "balance_batch": "rows are always shared out by their tokens",
    "max_num_batched_tokens": "rollout.max_num_seqs bounds what an engine runs at a time",
    "enforce_eager": "the engine is eager",
    "load_format": "the reshard brings the weights",
    "missing_eos_penalty": "algorithm.overlong_buffer punishes responses near the limit",
    "vf_coef": "the critic has an optimizer of its own, with critic.lr",
}

# What names a file with the config elsewhere.
_FILE = ("config", "config_name", "config_path", "config_file", "config_dir")

# By the last part of a key: what others call a value, and ours.
_VALUES: dict[str, dict[str, str]] = {
    "policy_loss": {
        **dict.fromkeys(("ppo", "vanilla", "grpo", "default", "regular"), "clip"),
        **dict.fromkeys(("dapo", "clip-higher", "decoupled-clip", "dual-clip"), "clip"),
    },
    "advantage": {
        **dict.fromkeys(("ppo", "lambda"), "gae"),
        **dict.fromkeys(("group-norm", "dr-grpo", "dapo", "grpo-passk"), "grpo"),
        **dict.fromkeys(("reinforce", "reinforce-plus-plus"), "reinforce++"),
        "reinforce-plus-plus-baseline": "reinforce++-baseline",
    },
    "loss_aggregation": {
        **dict.fromkeys(("bnpo", "dapo", "mean"), "token-mean"),
        **dict.fromkeys(("grpo", "sequence", "seq-mean"), "seq-mean-token-mean"),
        **dict.fromkeys(("dr-grpo", "sum", "seq-mean-token-sum-norm"), "seq-mean-token-sum"),
    },
    "estimator": {"kl": "k1", "mse": "k2", "low-var-kl": "k3"},
    "group_filter": {"true": "dapo", "false": "none"},
    "dtype": {"bf16": "bfloat16", "fp32": "float32", "fp16": "bfloat16", "float16": "bfloat16"},
    "strategy": dict.fromkeys(("fsdp", "deepspeed", "zero", "ddp", "zero3"), "fsdp2"),
    "engine": dict.fromkeys(("vllm", "sglang", "hf", "transformers"), "builtin"),
    "device": {"gpu": "cuda"},
    "schedule": {"constant-with-warmup": "constant", "wsd": "linear", "none": "constant"},
    "loggers": {"tb": "tensorboard", "stdout": "console", "json": "jsonl", "file": "jsonl"},
    "placement": {"hybrid": "colocate", "colocated": "colocate", "separate": "standalone"},
}

_OTHER_NAMES = {other: ours for ours, others in _KEYS.items() for other in others}


def meant_key(name: str, keys: Collection[str]) -> str | None:
    """That of `keys` which other trainers call `name`; None where none is known."""
    for end in _ends(name):
        ours = _OTHER_NAMES.get(end)
        if ours is not None:
            return _of_role(ours, name, keys)
    return None


def instead_of(name: str) -> str | None:
    """What is done instead of what others set by `name`; None for a name that is not known."""
    whole = next(_ends(name))
    if whole in _FILE:
        return "a YAML file goes first, without an option or a key"
    parts = whole.split(".")
    return next((_ABSENT[part] for part in reversed(parts) if part in _ABSENT), None)


def nearest_value(key: str, value: str, known: Iterable[str]) -> str:
    """Words for what to use instead of `value`, which the key `key` does not know."""
    known = list(known)
    spelled = value.lower().replace("_", "-")
    ours = _VALUES.get(key.rpartition(".")[2], {}).get(spelled)
    if ours is None and spelled in known:
        ours = spelled
    if ours is None:
        return nearest(value, known)
    return repr(ours) + (", or another of these" if len(known) > 1 else "")


def _ends(name: str) -> Iterator[str]:
    """The name as others write it in a file or as a flag, then without its first parts."""
    parts = name.lower().lstrip("+-").replace("-", "_").split(".")
    for first in range(len(parts)):
        yield ".".join(parts[first:])


def _of_role(ours: str, name: str, keys: Collection[str]) -> str:
    """A key of `actor` as that of the role that `name` is of, where the role has it."""
    parts = name.lower().split(".")
    rest = ours.removeprefix("actor.")
    if rest == ours:
        return ours
    named = (("critic", "critic"), ("ref", "reference"), ("rollout", "rollout"))
    for part, role in (*named, ("reference", "reference"), ("reward_model", "reward_model")):
        if part in parts and f"{role}.{rest}" in keys:
            return f"{role}.{rest}"
    return ours
