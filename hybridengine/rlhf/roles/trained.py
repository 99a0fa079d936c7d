"""trained: what roles that train have in common: an optimizer, its memory, and checkpoints."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hybridengine.rlhf.config.roles import Actor, Critic, Lora
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.roles.sharded import sharded_model
from hybridengine.rlhf.roles.tokenizer import open_tokenizer
from hybridengine.rlhf.training.export import export_hf
from hybridengine.rlhf.training.flops import measured_peak
from hybridengine.rlhf.training.models import Kind, export_dtype
from hybridengine.rlhf.training.optimizer import ShardedAdamW
from hybridengine.rlhf.training.passes import Passes
from hybridengine.rlhf.training.state import NotWritten, load_state, save_state
from hybridengine.rlhf.workers import RankContext, Role, dispatch


class TrainedRole(Role):
    """`section` of the config says how it trains; `module` is sharded over the pool."""

    def __init__(self, context: RankContext, config: Config, section: Actor | Critic) -> None:
        super().__init__(context, config)
        self._section = section
        self._offloaded = False
        self.module: torch.nn.Module
        self.optimizer: ShardedAdamW

    def hold(self, kind: Kind, path: str | None = None, lora: Lora | None = None) -> None:
        self.module = sharded_model(
            self.context, self.config, kind, self._section, path, trains=True, lora=lora
        )

    def make_passes(self, temperature: float = 1.0) -> Passes:
        return Passes(self.module, self._section, temperature, comm=self.context.comm)

    def make_optimizer(self, lr: float, total_steps: int | None) -> ShardedAdamW:
        """`total_steps`: after which a schedule that falls is at 0."""
        return ShardedAdamW(
            self.module,
            self._section.optimizer,
            lr,
            comm=self.context.comm,
            total_steps=total_steps,
            offload=self._section.optimizer_offload,
        )

    def make_steady_optimizer(self, lr: float) -> ShardedAdamW:
        """One whose learning rate stays as it is, for the warm-up."""
        steady = {"schedule": "constant", "warmup_steps": 0}
        options = self._section.optimizer.model_copy(update=steady)
        return ShardedAdamW(self.module, options, lr, comm=self.context.comm)

    def peak_flops(self) -> float:
        """FLOPs a second that this rank could reach."""
        tflops: float | None = self.config.trainer.peak_tflops
        if tflops is not None:
            return tflops * 1e12
        return measured_peak(self.context.device, getattr(torch, self._section.dtype))

    def offload(self) -> None:
        """Moves what only training needs to host memory, until wake(). The weights stay: they are
        what a transfer reads."""
        self.optimizer.zero_grad()
        self.optimizer.offload_moments()
        self._offloaded = True

    def wake(self) -> None:
        """Brings back what offload() moved, where it did."""
        if self._offloaded:
            self.optimizer.load_moments()
            self._offloaded = False

    @dispatch(collect="first")
    def save(self, folder: str) -> str:
        """What restore() goes on from. Returns why it could not be written, nothing where it was:
        a full disk is no fault of a rank, and ends none."""
        return reason(
            lambda: save_state(folder, self.module, self.optimizer, self.context.progress)
        )

    @dispatch(collect="none")
    def restore(self, folder: str) -> None:
        load_state(folder, self.module, self.optimizer, self.context.progress)

    @dispatch(collect="first")
    def export(self, folder: str) -> str:
        """A HF checkpoint with the tokenizer, from the first rank. Returns what save() does."""
        tokenizer = open_tokenizer(self.config) if self.context.rank == 0 else None
        dtype = export_dtype(self.config, self._section)
        masters, progress = self.optimizer.masters, self.context.progress
        return reason(
            lambda: export_hf(
                self.module, tokenizer, folder, dtype, masters=masters, progress=progress
            )
        )


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
