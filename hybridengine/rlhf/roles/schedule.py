"""schedule: how many optimizer steps a run takes, for schedules that fall to 0 at the last."""

from __future__ import annotations

from hybridengine.rlhf.config.schema import Config


def total_updates(config: Config, ppo_epochs: int) -> int | None:
    """None where the number of steps is not known."""
    steps = config.trainer.steps
    mini_batches = -(-config.data.train_batch_size // config.actor.ppo_mini_batch_size)
    return None if steps is None else steps * mini_batches * ppo_epochs
