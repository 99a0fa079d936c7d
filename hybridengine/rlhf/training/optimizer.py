"""optimizer: AdamW over the shards of this rank, its learning rate, and the norm of all gradients.

A step is taken by all ranks or by none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from hybridengine._core import UsageError
from hybridengine.collective import collectives
from hybridengine.comm import Communicator
from hybridengine.rlhf.config import roles
from hybridengine.rlhf.training.masters import Masters

_MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedAdamW:
    """AdamW over the weights of `module` that require a gradient, from the next step on.

    Where they are narrower than float32, their masters step, and they are those, rounded.
    `updates` counts the steps taken and `skipped` those whose gradient was not finite.
    """

    def __init__(
        self,
        module: nn.Module,
        options: roles.Optimizer,
        lr: float,
        *,
        comm: Communicator | None = None,
        total_steps: int | None = None,
        offload: bool = False,
    ) -> None:
        """`comm`: the ranks that hold shards; None: this one alone. `total_steps`: when a schedule
        that falls reaches 0. `offload`: keep the moments in host memory between steps."""
        if options.schedule != "constant" and total_steps is None:
            raise UsageError(
                f"optimizer.schedule={options.schedule} falls to 0 at the last step, but the "
                "number of steps is not known. Set trainer.steps, or optimizer.schedule=constant."
            )
        self.options, self.base_lr, self.total_steps = options, lr, total_steps
        self.updates = self.skipped = 0
        self.offload = offload
        self._comm = comm
        self._named = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self.masters = Masters(self._named.values())
        self._stepped = {name: self.masters.of(each) for name, each in self._named.items()}
        first, second = options.betas
        self._adamw = torch.optim.AdamW(
            self._stepped.values(),
            lr=lr,
            betas=(first, second),
            eps=options.eps,
            weight_decay=options.weight_decay,
            foreach=True,  # a DTensor costs tens of microseconds an operation, a list of them once
        )

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self.base_lr * _share(self.options, self.updates, self.total_steps)

    def step(self, grad_clip: float | None = None) -> float:
        """One step with the gradients that lie in the weights, and without them afterwards.

        Returns the 2-norm of the gradient over all ranks, before it is clipped to `grad_clip`. If
        that is not finite, no rank steps. Collective.
        """
        self.masters.take_gradients()
        norm = self._norm()
        if not math.isfinite(norm):
            self.skipped += 1
            self.zero_grad()
            return norm
        if grad_clip is not None and norm > grad_clip:
            for gradient in self._gradients():
                gradient.mul_(grad_clip / norm)
        for group in self._adamw.param_groups:
            group["lr"] = self.lr
        if self.offload:
            self.load_moments()
        self._adamw.step()
        self.masters.write()
        if self.offload:
            self.offload_moments()
        self.updates += 1
        self.zero_grad()
        return norm

    def zero_grad(self) -> None:
        self._adamw.zero_grad(set_to_none=True)
        for weight in self._named.values():
            weight.grad = None

    def offload_moments(self) -> None:
        """Moves moments and masters to host memory. No step may follow before `load_moments`."""
        self._move("cpu")

    def load_moments(self) -> None:
        """Moves them to where the weights are."""
        self._move(None)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """By name: the two moments of each weight, and the number of its steps; made if missing."""
        return {
            f"{name}.{key}": value
            for name, weight in self._stepped.items()
            for key, value in self._state_of(weight).items()
        }

    def _state_of(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self._adamw.state[weight]
        if not state:
            state["step"] = torch.zeros(())
            state.update({key: torch.zeros_like(weight.detach()) for key in _MOMENTS})
        return state

    @torch.no_grad()
    def _gradients(self) -> Iterator[torch.Tensor]:
        for weight in self._stepped.values():
            if weight.grad is not None:
                yield local(weight.grad)

    def _norm(self) -> float:
        """In float64, summed over ranks once; no wait for the device in between."""
        squares = [
            torch.linalg.vector_norm(gradient, dtype=torch.float64).square()
            for gradient in self._gradients()
        ]
        total = torch.stack(squares).sum()[None].cpu() if squares else torch.zeros(1).double()
        if self._comm is not None:
            collectives.all_reduce(total, "sum", comm=self._comm)
        return math.sqrt(float(total))

    @torch.no_grad()
    def _move(self, device: str | None) -> None:
        for name, weight in self._named.items():
            target = local(weight).device if device is None else torch.device(device)
            held = self._stepped[name]
            state = self._adamw.state.get(held, {})
            moved = [state[key] for key in _MOMENTS if state]
            for each in (*moved, *([held] if held is not weight else [])):
                part = local(each)
                if part.device != target:
                    part.data = part.data.to(target)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it: the shard itself, not a copy, without gradient."""
    with torch.no_grad():
        shard: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return shard.detach() if shard.requires_grad else shard


def _share(options: roles.Optimizer, updates: int, total_steps: int | None) -> float:
    """Of the base learning rate, in the step after so many updates."""
    if updates < options.warmup_steps:
        return (updates + 1) / (options.warmup_steps + 1)
    if options.schedule == "constant" or total_steps is None:
        return 1.0
    span = max(1, total_steps - options.warmup_steps)
    left = max(0.0, 1 - (updates - options.warmup_steps) / span)
    return left if options.schedule == "linear" else 0.5 * (1 - math.cos(math.pi * left))
