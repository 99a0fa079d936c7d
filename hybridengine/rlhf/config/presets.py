"""presets: named sets of values between the defaults and what a file or a command line sets.

`demo` is what `hybridengine train` runs without arguments: a model of 0.14 million weights that
learns sums and differences of digits within minutes on two CPU cores.
"""

from __future__ import annotations

from typing import Any

NONE = "none"
DEMO = "demo"

PRESETS: dict[str, dict[str, Any]] = {
    NONE: {},
    DEMO: {
        "model.config": {
            "model_type": "qwen2",
            "hidden_size": 64,
            "intermediate_size": 172,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "vocab_size": 128,
        },
        "data.gym.name": "chain_sum",
        "data.gym.size": 10000,
        "data.gym.options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
        "data.gym.prompt_key": "expression",
        "data.train_batch_size": 384,
        "data.max_prompt_length": 16,
        "data.max_response_length": 8,
        "warmup.steps": 135,
        "warmup.lr": 1e-3,
        "warmup.batch_size": 128,
        "rollout.max_model_len": 32,
        "actor.min_num_params": 1_000_000,  # all of it is one unit
        "critic.min_num_params": 1_000_000,
        "actor.activation_checkpointing": False,  # there is next to nothing to save
        "critic.activation_checkpointing": False,
        "actor.lr": 5e-4,
        "actor.optimizer.schedule": "linear",
        "actor.optimizer.betas": [0.9, 0.95],
        "actor.ppo_epochs": 3,
        "actor.ppo_mini_batch_size": 192,
        "critic.lr": 1e-3,
        "critic.ppo_epochs": 3,
        "reward.functions": ["exact_match"],
        "algorithm.kl_coef": 0.001,
        "algorithm.lam": 1.0,
        "algorithm.entropy_coef": 0.01,
        "trainer.ranks": 2,
        "cluster.cpus_per_rank": 0.5,  # so that one core is enough
        "trainer.steps": 180,
        "trainer.time_limit_s": 170.0,
    },
}
