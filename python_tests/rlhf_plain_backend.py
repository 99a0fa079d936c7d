"""A second training backend: plain torch in one process, padded rows, no shards, no packing.

It stands beside Fsdp2 in tests, to show that roles and losses know no more than the protocol.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from hybridengine import Spec
from hybridengine.rlhf.algorithms import entropy, global_counts, token_log_probs
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.roles.backends import Task
from hybridengine.rlhf.training.backend import Held, Objective, Terms
from hybridengine.rlhf.training.flops import UpdateCost
from hybridengine.rlhf.training.loading import build_model
from hybridengine.rlhf.training.models import weight_dtype
from hybridengine.rlhf.workers import RankContext


class Plain:
    def __init__(self, context: RankContext, config: Config, task: Task) -> None:
        dtype = weight_dtype(task.section)
        self._module: Any = build_model(config.model, task.kind, dtype, config.seed, task.path)
        self._module.set_attn_implementation("sdpa")
        self._cost = UpdateCost.of(self._module)
        self._temperature = task.temperature
        self._options = getattr(task.section, "optimizer", None)
        self._adam = self._adamw(getattr(task.section, "lr", 0.0))
        self._warm: torch.optim.AdamW | None = None

    def log_probs(self, batch: Batch, *, base: bool = False) -> torch.Tensor:
        with torch.no_grad():
            return batch.flat(self._policy(batch, self._temperature)[0])

    def values(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            heads = self._heads(batch)
        last = heads[torch.arange(len(batch)), batch.lengths - 1]
        return batch.flat(F.pad(heads, (1, 0))[:, :-1]), last

    def update(self, batch: Batch, loss: Objective, epochs: int = 1) -> dict[str, float]:
        return self._run(batch, loss, epochs, self._adam, self._temperature)

    def warm_up(self, batch: Batch, loss: Objective, lr: float) -> dict[str, float]:
        self._warm = self._adamw(lr) if self._warm is None else self._warm
        return self._run(batch, loss, 1, self._warm, 1.0)

    def end_warm_up(self) -> None:
        self._warm = None

    def weights(self) -> Held:
        dtype = str(self._module.dtype).removeprefix("torch.")
        return Held(Spec.from_config(self._module.config, dtype), self._module.state_dict())

    def save(self, folder: str | Path) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        torch.save([self._module.state_dict(), self._adam.state_dict()], Path(folder) / "state.pt")

    def load(self, folder: str | Path) -> None:
        weights, moments = torch.load(Path(folder) / "state.pt")
        self._module.load_state_dict(weights)
        self._adam.load_state_dict(moments)

    def export(self, folder: str | Path, tokenizer: Any, dtype: torch.dtype | None) -> None:
        self._module.to(dtype).save_pretrained(folder)

    def offload(self) -> None:
        """There is no other place."""

    def _adamw(self, lr: float) -> torch.optim.AdamW:
        options = self._options
        known = {} if options is None else {"eps": options.eps, "betas": tuple(options.betas)}
        decay = 0.0 if options is None else options.weight_decay
        return torch.optim.AdamW(self._module.parameters(), lr, weight_decay=decay, **known)

    def _run(
        self,
        batch: Batch,
        loss: Objective,
        epochs: int,
        adam: torch.optim.AdamW,
        temperature: float,
    ) -> dict[str, float]:
        numbers = batch.rows.get("mini_batch", torch.zeros(len(batch), dtype=torch.int64))
        losses, norms, seen, largest = list[float](), list[float](), dict[str, float](), {}
        done = dict[str, float]()
        for number in list(range(int(numbers.max()) + 1)) * epochs:
            rows = batch.select(torch.nonzero(numbers == number)[:, 0])
            terms = self._terms(loss, rows, temperature)
            adam.zero_grad()
            terms.loss.backward()  # type: ignore[no-untyped-call]
            norms.append(self._clipped())
            adam.step()
            losses.append(float(terms.loss.detach()))
            largest = largest or {name: float(value) for name, value in terms.largest.items()}
            tokens = int(rows["mask"].sum())
            work = {"flops": self._cost.flops(rows.lengths, tokens), "processed": len(rows["ids"])}
            done = {name: done.get(name, 0.0) + value for name, value in work.items()}
            for name, value in {**terms.sums, "tokens": tokens}.items():
                seen[name] = seen.get(name, 0.0) + float(value)
        total = seen.pop("tokens")
        return {
            "loss": sum(losses) / len(losses),
            "grad_norm": sum(norms) / len(norms),
            "tokens": total / epochs,
            **done,
            **{name: value / total for name, value in seen.items()},
            **largest,
        }

    def _terms(self, loss: Objective, rows: Batch, temperature: float) -> Terms:
        counts = global_counts(rows.padded("mask"))
        if loss.head == "value":
            return loss(F.pad(self._heads(rows), (1, 0))[:, :-1], rows, counts)
        return loss(*self._policy(rows, temperature), rows, counts)

    def _clipped(self) -> float:
        """The norm of the gradient before it is cut to the limit."""
        gradients = [each.grad for each in self._module.parameters() if each.grad is not None]
        norm = math.sqrt(sum(float(each.square().sum()) for each in gradients))
        for each in gradients:
            each.mul_(min(1.0, (self._options.grad_clip or math.inf) / norm))
        return norm

    def _policy(self, batch: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropy, [B, T]."""
        ids, mask = batch.padded("ids"), batch.padded("mask", False)[:, 1:]
        logits = self._module(input_ids=ids, attention_mask=self._real(batch)).logits[:, :-1]
        chosen = token_log_probs(logits, ids[:, 1:], temperature=temperature, mask=mask)
        spread = entropy(logits, temperature=temperature, mask=mask)
        return F.pad(chosen, (1, 0)), F.pad(spread, (1, 0))

    def _heads(self, batch: Batch) -> torch.Tensor:
        """[B, T]: the number behind each token."""
        ids, module = batch.padded("ids"), self._module
        hidden = module.base_model(input_ids=ids, attention_mask=self._real(batch))
        outputs: torch.Tensor = module.score(hidden.last_hidden_state)[..., 0]
        return outputs

    def _real(self, batch: Batch) -> torch.Tensor:
        return batch.pad(torch.ones_like(batch["ids"]))
