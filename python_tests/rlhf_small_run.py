"""The config of a run of seconds, which tests of whole runs share."""

MODEL = (
    "{model_type: qwen2, hidden_size: 24, intermediate_size: 40, num_hidden_layers: 2,"
    " num_attention_heads: 2, num_key_value_heads: 2, vocab_size: 128}"
)
# Two steps of PPO in float64, so that rounding does not hide a fault: groups of two, mini-batches
# that do not divide by the ranks, a warm-up, a KL in the reward, truncated responses.
SMALL = [
    "preset=none",
    f"model.config={MODEL}",
    "data.gym.name=chain_sum",
    "data.gym.options={min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}",
    "data.gym.prompt_key=expression",
    "data.gym.size=64",
    "data.eval_size=5",
    "data.train_batch_size=10",
    "data.max_prompt_length=16",
    "data.max_response_length=4",
    "rollout.max_model_len=24",
    "rollout.n=2",
    "rollout.dtype=float64",
    "actor.dtype=float64",
    "critic.dtype=float64",
    "actor.ppo_mini_batch_size=4",
    "actor.ppo_epochs=2",
    "critic.ppo_epochs=2",
    "actor.lr=1e-3",
    "critic.lr=1e-3",
    "reward.functions=[length]",
    "reward.options={length: {target: 2}}",
    "warmup.steps=3",
    "warmup.batch_size=7",
    "trainer.steps=2",
    "trainer.loggers=[jsonl]",
    "cluster.cpus_per_rank=0.5",
]
