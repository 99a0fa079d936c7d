"""splits: the samples of a split, from wherever the config says. Text, not yet tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy

from hybridengine._core import UsageError
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data.files import read_files
from hybridengine.rlhf.data.gym import make_gym
from hybridengine.rlhf.data.samples import Sample

# Samples of a generator come from consecutive seeds, so splits and runs must start far apart. Train
# starts below it and evaluation as far above: 32 bits are what every generator takes.
_HALF = 1 << 31


def open_data(config: Config, split: Literal["train", "eval"]) -> Sequence[Sample]:
    """The samples of a split; none for an evaluation without files or generator.

    Throws UsageError where the config names no data or two kinds of it, and as the readers do.
    """
    data = config.data
    if data.gym.name is not None and data.train_files:
        raise UsageError(
            "data.gym.name and data.train_files are both set: samples come from one of them. "
            "Set data.gym.name=null or data.train_files=[]."
        )
    if split == "eval" and data.eval_files:
        return read_files(data.eval_files, data)
    if data.gym.name is None:
        if split == "eval":
            return []
        if not data.train_files:
            raise UsageError("there is no data to train on. Set data.train_files or data.gym.name.")
        return read_files(data.train_files, data)
    start = _first_seed(config.seed)
    if split == "train":
        return make_gym(data.gym, start)
    held_out = data.gym.model_copy(update={"size": data.eval_size})
    return make_gym(held_out, start + _HALF, "evaluation sample")


def _first_seed(seed: int) -> int:
    return int(numpy.random.SeedSequence(seed).generate_state(1)[0]) % _HALF
