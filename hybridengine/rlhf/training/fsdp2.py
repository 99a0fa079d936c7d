"""fsdp2: the backend that holds a model in FSDP2 shards over the ranks of a pool.

It puts together what the other files of this folder do one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hybridengine import Spec
from hybridengine.comm import Communicator
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.roles import Actor, Critic, Sharding
from hybridengine.rlhf.training.backend import Held, Objective
from hybridengine.rlhf.training.export import export_hf
from hybridengine.rlhf.training.lora import (
    fold_adapters,
    has_adapters,
    merged_tensors,
    without_adapters,
)
from hybridengine.rlhf.training.models import shard_dtype
from hybridengine.rlhf.training.optimizer import ShardedAdamW
from hybridengine.rlhf.training.passes import Passes
from hybridengine.rlhf.training.state import load_state, save_state
from hybridengine.rlhf.training.stepping import Stepper


class Fsdp2:
    """A Backend over `module`, which is sharded over the ranks of `comm` as `section` says."""

    def __init__(
        self,
        module: nn.Module,
        section: Sharding,
        *,
        comm: Communicator | None = None,
        temperature: float = 1.0,
        total_steps: int | None = None,
        seed: int = 0,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """A `section` with an optimizer trains. `total_steps`: after which a schedule that falls is
        at 0. `seed`: of the dropout before adapters. `progress` is called with every tensor
        that is saved, loaded or exported."""
        self.module, self.passes = module, Passes(module, section, temperature, comm=comm)
        self.optimizer: ShardedAdamW | None = None
        if isinstance(section, Actor | Critic):
            self.optimizer = ShardedAdamW(
                module,
                section.optimizer,
                section.lr,
                comm=comm,
                total_steps=total_steps,
                offload=section.optimizer_offload,
            )
        self._seed, self._progress, self._offloaded = seed, progress, False
        self._stepper = (
            None if self.optimizer is None else Stepper(self.passes, self.optimizer, seed)
        )
        self._warming: Stepper | None = None
        self._weights = Held(_spec(module, section, self.optimizer), merged_tensors(module))

    def log_probs(self, batch: Batch, *, base: bool = False) -> torch.Tensor:
        with without_adapters(self.module) if base else nullcontext():
            return self.passes.log_probs(batch)

    def values(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.passes.values(batch)

    def update(self, batch: Batch, loss: Objective, epochs: int = 1) -> dict[str, float]:
        if self._offloaded:
            self._trained().load_moments()
            self._offloaded = False
        assert self._stepper is not None, "a model that only measures does not train"
        return self._stepper.run(batch, loss, epochs)

    def warm_up(self, batch: Batch, loss: Objective, lr: float) -> dict[str, float]:
        if self._warming is None:
            steady = {"schedule": "constant", "warmup_steps": 0}
            options = self._trained().options.model_copy(update=steady)
            passes = Passes(self.module, self.passes.sharding, comm=self.passes.comm)
            optimizer = ShardedAdamW(self.module, options, lr, comm=passes.comm)
            self._warming = Stepper(passes, optimizer, self._seed)
        return self._warming.run(batch, loss)

    def end_warm_up(self) -> None:
        self._warming = None
        fold_adapters(self.module)
        self._trained().masters.take_in()

    def weights(self) -> Held:
        if has_adapters(self.module):
            merged_tensors(self.module, self._weights.tensors)
        return self._weights

    def save(self, folder: str | Path) -> None:
        save_state(folder, self.module, self.optimizer, self._progress)

    def load(self, folder: str | Path) -> None:
        load_state(folder, self.module, self.optimizer, self._progress)

    def export(self, folder: str | Path, tokenizer: Any, dtype: torch.dtype | None) -> None:
        masters, progress = self._trained().masters, self._progress
        export_hf(self.module, tokenizer, folder, dtype, masters=masters, progress=progress)

    def offload(self) -> None:
        optimizer = self._trained()
        optimizer.zero_grad()
        optimizer.offload_moments()
        self._offloaded = True

    def _trained(self) -> ShardedAdamW:
        assert self.optimizer is not None, "a model that only measures does not train"
        return self.optimizer


def _spec(module: Any, sharding: Sharding, optimizer: ShardedAdamW | None) -> Spec:
    """The tensors of a transformers module in the type in which its shards hold them."""
    held = shard_dtype(sharding, trains=optimizer is not None)
    return Spec.from_config(module.config, str(held).removeprefix("torch."))
