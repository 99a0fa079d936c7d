"""backend: what trains a model on the ranks of a pool, as roles see it, and what it minimizes.

Roles call nothing else of what trains. Fsdp2 (fsdp2.py) is one backend; another stands in its place
by having these methods and a row in roles/backends.py. Losses (ppo.py, supervised.py) know no
backend: they are values, which take what the model says of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from hybridengine import Spec
from hybridengine.rlhf.algorithms import Counts
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.training.forward import Spread


@dataclass(frozen=True)
class Terms:
    """What a loss makes of one micro-batch. `loss` alone has a gradient.

    `loss`: its part of the loss of the mini-batch, whose parts on all ranks add up. `sums`: by
    metric, over its trainable tokens. `largest`: by metric. `kl`: [trainable tokens], from the
    policy that sampled to this one, for a loss with a `kl_limit`.
    """

    loss: torch.Tensor
    sums: Mapping[str, torch.Tensor] = field(default_factory=dict)
    largest: Mapping[str, torch.Tensor] = field(default_factory=dict)
    kl: torch.Tensor | None = None


@dataclass(frozen=True)
class Held:
    """The tensors of the whole model, and what this rank holds of them, by the same names."""

    spec: Spec
    tensors: Mapping[str, torch.Tensor]


class PolicyObjective(Protocol):
    """A loss of a language model. It holds nothing that a call changes.

    `columns`: of the batch, which it reads besides ids and mask. `entropy`: what it wants of that.
    `means`: the metrics in `sums`, which become means over trainable tokens; `maxima`: those in
    `largest`, of the micro-batches before the first optimizer step. `kl_limit`: the mean KL of a
    mini-batch above which the update ends before its step.
    """

    head: Literal["policy"]
    entropy: Spread
    columns: tuple[str, ...]
    means: tuple[str, ...]
    maxima: tuple[str, ...]
    kl_limit: float | None

    def __call__(
        self, log_probs: torch.Tensor, entropy: torch.Tensor, micro: Batch, counts: Counts
    ) -> Terms:
        """`log_probs` (with gradient) and `entropy`: [B, T] of the rows of `micro`, padded on the
        right, 0 where its mask is false. `counts`: of the mini-batch over all ranks."""


class ValueObjective(Protocol):
    """A loss of a model with one number as output; the rest is as above."""

    head: Literal["value"]
    columns: tuple[str, ...]
    means: tuple[str, ...]
    maxima: tuple[str, ...]
    kl_limit: float | None

    def __call__(self, values: torch.Tensor, micro: Batch, counts: Counts) -> Terms:
        """`values` (with gradient): [B, T], of what comes before each token."""


Objective = PolicyObjective | ValueObjective


class Backend(Protocol):
    """A model on this rank, whole or in part, and what trains it. All methods are collective over
    the ranks of the pool but offload; batches lie in host memory, each rank passes its own rows."""

    def log_probs(self, batch: Batch, *, base: bool = False) -> torch.Tensor:
        """[N]: of the tokens in the mask, after temperature, else 0; with `base` of the policy
        below the adapters. Needs ids and mask; rows of a mini_batch go together."""

    def values(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """([N], [B]): the value before each token, and behind the last one of a row."""

    def update(self, batch: Batch, loss: Objective, epochs: int = 1) -> dict[str, float]:
        """One optimizer step for each mini-batch that has trainable tokens, `epochs` times.

        Returns, the same on every rank, loss, grad_norm, lr, tokens, updates, skipped, stopped and
        micro_batches, flops (of the model) and processed (tokens of rows), both over all passes,
        and the metrics of the loss."""

    def warm_up(self, batch: Batch, loss: Objective, lr: float) -> dict[str, float]:
        """An update without temperature and with moments of its own, kept until end_warm_up()."""

    def end_warm_up(self) -> None:
        """Frees these moments. What the policy has become is the one below the adapters now."""

    def weights(self) -> Held:
        """By the names of a checkpoint, as they are now; adapters are merged. The tensors are the
        same in every call, which writes merged ones anew."""

    def save(self, folder: str | Path) -> None:
        """What load() goes on from, on any number of ranks. Throws NotWritten."""

    def load(self, folder: str | Path) -> None: ...

    def export(self, folder: str | Path, tokenizer: Any, dtype: torch.dtype | None) -> None:
        """A HF checkpoint. Throws NotWritten."""

    def offload(self) -> None:
        """Moves what only an update needs to host memory, until the next one."""
