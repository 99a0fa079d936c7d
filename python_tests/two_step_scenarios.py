"""What ranks do in test_two_step*.py, and the same update done on whole tensors in plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hybridengine import Communicator, Layout, LayoutRule, Spec, TwoStep, _core
from hybridengine.clipping import clip, norm_of, sums_of_squares

Tensors = dict[str, torch.Tensor]

OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2, amsgrad=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
}


@dataclass(frozen=True)
class Case:
    """A training run of a few steps with made-up gradients."""

    spec: Spec
    train: str
    gen: str
    replicas: int  # data parallel: different gradients
    optimizer: str = "adamw"
    dtype: str | None = None
    max_norm: float | None = None
    grad_op: str = "sum"
    steps: int = 3

    @property
    def train_layout(self) -> Layout:
        return LayoutRule.parse(self.train).bind(self.spec)

    @property
    def gen_layout(self) -> Layout:
        spec = self.spec if self.dtype is None else self.spec.with_dtype(self.dtype)
        return LayoutRule.parse(self.gen).bind(spec)

    @property
    def tensor_parallel(self) -> int:
        return len(self.train_layout.ranks) // self.replicas

    def gradients(self, step: int, replica: int) -> Tensors:
        return random_tensors(self.spec, 1000 * step + replica + 1)


def random_tensors(spec: Spec, seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator).to(getattr(torch, dtype))
        for name, shape, dtype in spec.tensors
    }


def cut(full: Tensors, layout: Layout, rank: int) -> Tensors:
    """The local tensors of a rank, box by box; padding is zero."""
    local = {
        name: torch.zeros(shape, dtype=getattr(torch, dtype))
        for name, shape, dtype in layout.locals(rank)
    }
    for tensor, name, start, size, offset, strides in layout.pieces(rank):
        box = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
        local[name].as_strided(size, strides, offset).copy_(full[tensor][box])
    return local


def run_case(comm: Communicator, case: Case) -> tuple[list[dict[str, Tensors]], TwoStep]:
    """Training and generation tensors after each step, norms under "norm"."""
    start = cut(random_tensors(case.spec, 0), case.train_layout, comm.rank)
    params = {name: torch.nn.Parameter(tensor) for name, tensor in start.items()}
    two_step = TwoStep(
        params,
        OPTIMIZERS[case.optimizer],
        case.gen_layout,
        comm=comm,
        train_layout=case.train_layout,
        max_norm=case.max_norm,
        grad_op=case.grad_op,
    )
    seen = [snapshot(params, two_step)]
    for step in range(case.steps):
        two_step.zero_grad()
        local = cut(
            case.gradients(step, comm.rank // case.tensor_parallel), case.train_layout, comm.rank
        )
        for name, each in params.items():
            each.grad = local[name]
        norm = two_step.step()
        seen.append(snapshot(params, two_step) | {"norm": norm})
    return seen, two_step


def snapshot(params: dict[str, torch.nn.Parameter], two_step: TwoStep) -> dict[str, Any]:
    return {
        "training": {name: each.detach().clone() for name, each in params.items()},
        "generation": {name: each.clone() for name, each in two_step.generation.items()},
    }


def expected(case: Case) -> list[tuple[Tensors, float | None]]:
    """Whole masters after each step and the norms: sum in rank order in float32, clip, the same
    optimizer on whole tensors."""
    masters = {
        name: torch.nn.Parameter(tensor.float())
        for name, tensor in random_tensors(case.spec, 0).items()
    }
    optimizer = OPTIMIZERS[case.optimizer](list(masters.values()))
    seen: list[tuple[Tensors, float | None]] = [(copies(masters), None)]
    for step in range(case.steps):
        gradients = summed([case.gradients(step, each) for each in range(case.replicas)])
        if case.grad_op == "mean":
            gradients = {name: each / case.replicas for name, each in gradients.items()}
        norm = None
        if case.max_norm is not None:
            norm = clip_whole(gradients, case.gen_layout, case.max_norm)
        for name, each in masters.items():
            each.grad = gradients[name]
        optimizer.step()
        seen.append((copies(masters), norm))
    return seen


def summed(gradients: list[Tensors]) -> Tensors:
    total = {name: each.float() for name, each in gradients[0].items()}
    for more in gradients[1:]:
        for name, each in more.items():
            total[name] += each.float()
    return total


def clip_whole(gradients: Tensors, gen: Layout, max_norm: float) -> float:
    """Clips whole tensors by the norm over the blocks that owners would have."""
    owners = Layout(_core.owners_of(gen.core, "float32"))
    pieces = [each for rank in owners.ranks for each in cut(gradients, owners, rank).values()]
    norm = norm_of(sums_of_squares(pieces))
    assert math.isclose(norm, norm_of(sums_of_squares(g.flatten() for g in gradients.values())))
    clip(gradients.values(), norm, max_norm)
    return norm


def copies(tensors: dict[str, torch.nn.Parameter]) -> Tensors:
    return {name: each.detach().clone() for name, each in tensors.items()}


def as_stored(masters: Tensors, layout: Layout) -> Tensors:
    types = {name: getattr(torch, dtype) for name, _, dtype in layout.spec.tensors}
    return {name: each.to(types[name]) for name, each in masters.items()}
