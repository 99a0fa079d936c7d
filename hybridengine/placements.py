"""placements: the layout that a module's DTensors describe.

Each rank knows its own part of every tensor; together they know who holds what.
"""

from __future__ import annotations

import json
from typing import Any

import hybridengine.tensors as memory
from hybridengine._core import Layout as CoreLayout
from hybridengine._core import UsageError
from hybridengine.agree import same_everywhere
from hybridengine.comm import Communicator
from hybridengine.layout import Layout
from hybridengine.names import canonical_names
from hybridengine.spec import Spec

_Row = tuple[str, list[int], str, list[int], list[int]]  # name, whole shape, dtype, start, size


def is_placed(module: Any) -> bool:
    """Whether the module has DTensors."""
    return hasattr(module, "parameters") and any(
        hasattr(each, "placements") for each in module.parameters()
    )


def placed_layout(comm: Communicator, module: Any) -> Layout:
    """The layout of `module` over all ranks of `comm`, each of which has it. Collective.

    Throws UsageError, on every rank, where a placement is neither Shard nor Replicate.
    """
    error, rows, aliases = "", [], []
    held = memory.held_by(module)
    names = [] if held.config is None else Spec.from_architecture(held.config).tensors
    match = canonical_names(held.tensors, [name for name, _, _ in names])
    named = dict(module.state_dict(keep_vars=True))
    try:
        rows = [
            (match[name], list(shape), dtype, *_box(name, named[name], held.tensors[name]))
            for name, shape, dtype in held.rows
        ]
        aliases = [(alias, match[name]) for alias, name in held.aliases]
    except UsageError as fault:
        error = str(fault)
    same_everywhere(comm, error, [])
    with comm.call():
        replies = [json.loads(blob) for blob in comm.all_gather(json.dumps(rows).encode())]
    spec = Spec.from_tensors([row[:3] for row in rows], aliases, held.config)
    return _by_hand(spec, replies)


def _box(name: str, tensor: Any, local: Any) -> tuple[list[int], list[int]]:
    """Start and size of what this rank has of a tensor: each mesh dim in turn cuts what the ones
    before it left."""
    start, size = [0] * tensor.dim(), list(tensor.shape)
    for axis, placement in enumerate(getattr(tensor, "placements", ())):
        if placement.is_replicate():
            continue
        if type(placement).__name__ != "Shard":
            raise UsageError(
                f"{name!r} is placed as {placement}. Pass train_layout= to say what each rank has."
            )
        dim, parts = placement.dim, tensor.device_mesh.size(axis)
        rows = -(-size[dim] // parts)
        first = min(rows * tensor.device_mesh.get_local_rank(axis), size[dim])
        start[dim] += first
        size[dim] = min(rows, size[dim] - first)
    if tuple(size) != tuple(local.shape):
        raise UsageError(
            f"{name!r} is {list(local.shape)} on this rank, its placements give {size}. Pass "
            "train_layout= to say what each rank has."
        )
    return start, size


def _by_hand(spec: Spec, replies: list[list[_Row]]) -> Layout:
    locals_, pieces = [], []
    for rank, rows in enumerate(replies):
        for name, _, dtype, start, size in rows:
            strides = [1] * len(size)
            for dim in reversed(range(len(size) - 1)):
                strides[dim] = strides[dim + 1] * max(1, size[dim + 1])
            locals_.append((rank, name, size, dtype))
            pieces.append((name, rank, name, start, size, 0, strides))
    ranks = list(range(len(replies)))
    core = CoreLayout("the module's placements", spec.core, ranks, locals_, pieces)
    return Layout(core, spec)
