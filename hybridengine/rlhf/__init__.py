"""The trainer: PPO and its family over sharded models, with weights moved by the engine.

    from hybridengine.rlhf import load_config, train

    train(load_config(["examples/grpo_smollm2.yaml", "trainer.steps=20"]))

is what `hybridengine train` does. `algorithms` has the formulas, `config` the keys, `data` and
`rewards` what goes in, `generation` and `training` the models, `workers` the ranks on Ray, `roles`
what they do, `trainer` what happens when. Importing this package imports nothing but itself.
"""

from typing import TYPE_CHECKING

from hybridengine.lazy import lazy_names

if TYPE_CHECKING:
    from hybridengine.rlhf.config.loading import load_config
    from hybridengine.rlhf.trainer.run import train

__all__ = ["load_config", "train"]

__getattr__ = lazy_names(
    __name__,
    {"load_config": "config.loading", "train": "trainer.run"},
)
