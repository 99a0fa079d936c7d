"""trained: what roles with a backend have in common: checkpoints; those that train also export."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hybridengine.rlhf.config.roles import Actor, Critic
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.roles.tokenizer import open_tokenizer
from hybridengine.rlhf.training.backend import Backend
from hybridengine.rlhf.training.flops import measured_peak
from hybridengine.rlhf.training.models import export_dtype
from hybridengine.rlhf.training.state import NotWritten
from hybridengine.rlhf.workers import Role, dispatch


class KeptRole(Role):
    """One whose `backend` is part of a checkpoint."""

    backend: Backend

    @dispatch(collect="first")
    def save(self, folder: str) -> str:
        """What restore() goes on from. Returns why it could not be written, nothing where it was:
        a full disk is no fault of a rank, and ends none."""
        return reason(lambda: self.backend.save(folder))

    @dispatch(collect="none")
    def restore(self, folder: str) -> None:
        self.backend.load(folder)


class TrainedRole(KeptRole):
    """`section` of the config says how it trains."""

    section: Actor | Critic

    def peak_flops(self) -> float:
        """FLOPs a second that this rank could reach."""
        tflops: float | None = self.config.trainer.peak_tflops
        if tflops is not None:
            return tflops * 1e12
        return measured_peak(self.context.device, getattr(torch, self.section.dtype))

    def offload(self) -> None:
        """Moves what only training needs to host memory, until the next update. The weights stay:
        they are what a transfer reads."""
        self.backend.offload()

    @dispatch(collect="first")
    def export(self, folder: str) -> str:
        """A HF checkpoint with the tokenizer, from the first rank. Returns what save() does."""
        tokenizer = open_tokenizer(self.config) if self.context.rank == 0 else None
        dtype = export_dtype(self.config, self.section)
        return reason(lambda: self.backend.export(folder, tokenizer, dtype))


def reason(write: Callable[[], None]) -> str:
    """Why `write` did not, nothing where it did."""
    try:
        write()
    except NotWritten as error:
        return str(error)
    return ""


def total_updates(config: Config, ppo_epochs: int, idle_steps: int = 0) -> int | None:
    """How many optimizer steps a run takes with a role that rests for the first `idle_steps` of its
    steps; None where the number of these is not known."""
    steps = config.trainer.steps
    mini_batches = -(-config.data.train_batch_size // config.actor.ppo_mini_batch_size)
    return None if steps is None else max(0, steps - idle_steps) * mini_batches * ppo_epochs
