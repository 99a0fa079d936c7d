"""optimizers: what an optimizer must be to run on pieces of tensors, and the pieces.

An optimizer is *element-wise* where a step changes each element by what it knows about that element
alone. Only then is a step on pieces the same as a step on whole tensors. It is not taken on trust:
a few steps on random data, whole and in two pieces, must agree in every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch

from hybridengine._core import UsageError
from hybridengine.tensors import Row

OptimizerFactory = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

# Elements of a parameter. The temporaries of a step then stay in the cache, and in memory that the
# allocator keeps: on one tensor of 2**25 elements AdamW took three times as long.
_BLOCK_ELEMS = 1 << 19
# Odd, so that both the vector loops and what they leave over are tried.
_ELEMS, _CUT = 1021, 346
# The first step of many optimizers is a special one.
_STEPS = 3
_SEED = 20


class Masters:
    """The float32 masters of a rank: flat tensors by logical name, and an optimizer over them.

    Its parameters are blocks of the tensors, in order. Each has the name of its tensor as
    `logical_name`.
    """

    def __init__(self, rows: list[Row]) -> None:
        self.tensors = {
            name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, shape, dtype in rows
        }
        self._blocks = {
            name: [_parameter(name, block) for block in torch.split(each, _BLOCK_ELEMS)]
            for name, each in self.tensors.items()
        }

    def make_optimizer(self, factory: OptimizerFactory) -> torch.optim.Optimizer:
        """A rank without masters has an empty parameter, for torch knows no optimizer without."""
        blocks = [block for each in self._blocks.values() for block in each]
        return factory(blocks or [_parameter("", torch.empty(0))])

    def give(self, gradients: Mapping[str, torch.Tensor], absent: Collection[str]) -> None:
        """Makes views of flat `gradients` those of the parameters; None for tensors of `absent`."""
        for name, blocks in self._blocks.items():
            for block, gradient in zip(
                blocks, torch.split(gradients[name], _BLOCK_ELEMS), strict=True
            ):
                block.grad = None if name in absent else gradient


def _parameter(name: str, tensor: torch.Tensor) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(tensor)
    parameter.logical_name = name  # type: ignore[attr-defined]
    return parameter


def prove_element_wise(factory: OptimizerFactory) -> None:
    """Throws UsageError naming the optimizer unless steps on pieces are steps on the whole."""
    generator = torch.Generator().manual_seed(_SEED)
    start = torch.randn(_ELEMS, generator=generator)
    gradients = [torch.randn(_ELEMS, generator=generator) for _ in range(_STEPS)]
    whole = _run(factory, [start], [[each] for each in gradients])
    cut = _run(factory, _cut(start), [_cut(each) for each in gradients])
    if not torch.equal(whole[1].view(torch.int32), cut[1].view(torch.int32)):
        raise UsageError(
            f"{whole[0]} is not element-wise: a step on two pieces of a tensor differs from a step "
            "on the whole. TwoStep keeps pieces; use AdamW, Adam or SGD, for example (a fused "
            "kernel may treat the end of a tensor differently)."
        )


def _cut(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [tensor[:_CUT], tensor[_CUT:]]


def _run(
    factory: OptimizerFactory, start: list[torch.Tensor], gradients: list[list[torch.Tensor]]
) -> tuple[str, torch.Tensor]:
    """The name of the optimizer, and the parameters after some steps, joined."""
    parameters = [_parameter("weight", each.clone()) for each in start]
    name = getattr(factory, "__name__", type(factory).__name__)
    try:
        optimizer = factory(parameters)
        name = type(optimizer).__name__
        places = [parameter.detach() for parameter in parameters]
        for step in gradients:
            for parameter, gradient in zip(parameters, step, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
        if any(a.data_ptr() != b.data_ptr() for a, b in zip(places, parameters, strict=True)):
            raise RuntimeError("it gives parameters other memory instead of changing them in place")
    except Exception as error:
        raise UsageError(
            f"{name} does not run on 1-d float32 pieces: {error}. TwoStep needs an element-wise "
            "optimizer whose step() takes no closure, such as AdamW, Adam or SGD."
        ) from error
    return name, torch.cat([each.detach() for each in parameters])
