"""weights: points a model's parameters at given tensors, without a copy.

The other way round, writing into the memory of parameters, is the Resharder's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hybridengine._core import UsageError
from hybridengine.wording import listed

_SHOWN = 5  # names in an error


def hollow(model: Any) -> Any:
    """`model`, whose parameters have shape and type and no memory or gradient until load_weights()
    gives them some. Those on torch's meta device lie on the CPU from now on; tied ones stay tied.
    """
    made: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            empty = torch.empty((), dtype=weight.dtype).expand(weight.shape)
            held = made.setdefault(id(weight), torch.nn.Parameter(empty, requires_grad=False))
            setattr(module, name, held)
    return model


def load_weights(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Every parameter of `model` shares the memory of the tensor of its name from now on.

    Names are those of the HF checkpoint, which are the parameters' names in modules that fuse
    nothing. Of tied weights one name is enough; where more are given they must be the same memory.
    Throws UsageError that lists the names that are missing or unexpected, and on a shape, type or
    device that differs; then nothing has changed.
    """
    names = _names(model)
    _check_names(names, tensors)
    chosen = {id(p): (p, _tensor(p, alike, tensors)) for p, alike in names}
    for parameter, tensor in chosen.values():
        parameter.data = tensor


def release_weights(model: torch.nn.Module) -> None:
    """Every parameter lets go of its memory; shape, type and device stay, as load_weights() needs
    them. Until then the model gives garbage."""
    for parameter in model.parameters():
        parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)


def _names(model: torch.nn.Module) -> list[tuple[torch.nn.Parameter, list[str]]]:
    """Each parameter once, with all its names."""
    found: dict[int, tuple[torch.nn.Parameter, list[str]]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), (parameter, []))[1].append(name)
    return list(found.values())


def _check_names(
    names: list[tuple[torch.nn.Parameter, list[str]]], tensors: Mapping[str, torch.Tensor]
) -> None:
    known = {name for _, alike in names for name in alike}
    missing = [alike[0] for _, alike in names if not any(name in tensors for name in alike)]
    unexpected = [name for name in tensors if name not in known]
    if missing or unexpected:
        facts = [
            f"{what}: {listed(which, _SHOWN)}"
            for what, which in (("missing", missing), ("unexpected", unexpected))
            if which
        ]
        raise UsageError(
            f"the tensors are not those of the model: {'; '.join(facts)}. Pass one for each name "
            "of its checkpoint."
        )


def _tensor(
    parameter: torch.nn.Parameter, names: list[str], tensors: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    given = [name for name in names if name in tensors]
    tensor = tensors[given[0]].detach()
    for name in given[1:]:
        if tensors[name].data_ptr() != tensor.data_ptr():
            raise UsageError(
                f"{given[0]!r} and {name!r} are one weight in the model, but two tensors were "
                "given. Pass one of them."
            )
    found, expected = _facts(tensor), _facts(parameter)
    if found != expected:
        raise UsageError(
            f"tensor {given[0]!r} does not fit its parameter: it is {found}, the parameter is "
            f"{expected}. Give it the parameter's shape, type and device."
        )
    return tensor


def _facts(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
