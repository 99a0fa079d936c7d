"""placements: what DTensors say of themselves: who holds which part of each tensor.

A DTensor has a mesh of ranks and, for each axis of the mesh, a placement. They are read into rules
of the core, so that one piece of code cuts tensors, whoever describes the cuts. Nothing is
communicated: a mesh names all of its ranks.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.layouts.names import template_of

Cuts = tuple[tuple[int, int], ...]  # (dim, axis), in the order in which they are applied
Row = tuple[str, tuple[int, ...], str]  # name, shape of the whole, dtype
Box = tuple[tuple[int, ...], tuple[int, ...]]  # start, size


@dataclass(frozen=True)
class MeshPlan:
    """The ranks of a mesh, the last axis fastest."""

    sizes: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """Where the parts of a DTensor lie. `shape`: of the whole; `rank`: this process in the mesh,
    None outside of it; `text`: the placements as torch prints them."""

    shape: tuple[int, ...]
    mesh: MeshPlan
    cuts: Cuts
    rank: int | None
    text: str

    def __str__(self) -> str:
        return f"{self.text} over a mesh {list(self.mesh.sizes)} of ranks {list(self.mesh.ranks)}"


def is_distributed(tensor: Any) -> bool:
    """Whether it is a DTensor, which knows the whole and its parts."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def placement_of(name: str, tensor: Any) -> Placement:
    """What a DTensor says. A slice of a larger mesh counts as that mesh: the ranks of the other
    slices hold the same.

    Throws UsageError, naming the tensor, on a placement that is no Shard and no Replicate.
    """
    mesh, axes, rank = _read_mesh(tensor.device_mesh)
    own_sizes = tuple(tensor.device_mesh.shape)
    cuts = _cuts(name, tensor.placements, own_sizes, tensor.dim())
    placed = tuple((dim, axes[axis]) for dim, axis in cuts)
    return Placement(tuple(tensor.shape), mesh, placed, rank, str(tuple(tensor.placements)))


@functools.lru_cache(maxsize=64)
def _read_mesh(mesh: Any) -> tuple[MeshPlan, tuple[int, ...], int | None]:
    """The mesh that `mesh` is a slice of (or itself), its axes in it, and this process's rank."""
    coordinate = mesh.get_coordinate()
    rank = None if coordinate is None else int(mesh.mesh[tuple(coordinate)])
    names = mesh.mesh_dim_names
    root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh
    if not names or not root.mesh_dim_names or not set(names) <= set(root.mesh_dim_names):
        root = mesh
    axes = [root.mesh_dim_names.index(each) for each in names] if root is not mesh else None
    plan = MeshPlan(tuple(root.mesh.shape), tuple(root.mesh.flatten().tolist()))
    return plan, tuple(range(len(plan.sizes)) if axes is None else axes), rank


def _cuts(name: str, placements: Sequence[Any], sizes: Sequence[int], ndim: int) -> Cuts:
    """The cuts in the order in which they are applied: axis by axis, but that of a strided shard
    comes after axes to its right whose sizes multiply to its split factor."""
    order: list[tuple[int, int]] = []
    for axis in reversed(range(len(placements))):
        placement = placements[axis]
        kind = type(placement).__name__
        if placement.is_replicate():
            continue
        if kind not in ("Shard", "_StridedShard"):
            raise UsageError(
                f"{name!r} is placed as {placement}, which is no Shard and no Replicate. "
                "Redistribute it, or pass a layout that is bound to a spec and plain tensors."
            )
        factor = placement.split_factor if kind == "_StridedShard" else 1
        dim = placement.dim % max(1, ndim)
        order.insert(_position(name, order, dim, factor, sizes), (dim, axis))
    return tuple(order)


def _position(
    name: str, order: list[tuple[int, int]], dim: int, factor: int, sizes: Sequence[int]
) -> int:
    product = 1
    for position, (each, axis) in enumerate(order):
        if product == factor:
            return position
        product *= sizes[axis] if each == dim else 1
    if product != factor:
        raise UsageError(
            f"{name!r} is a strided shard with split factor {factor}, which no axes of its mesh "
            f"{list(sizes)} have. Redistribute it to Shard first."
        )
    return len(order)


def placed_layout(
    rows: Sequence[Row], placements: Mapping[str, Placement], spec: _core.Spec
) -> _core.Layout:
    """The layout of all ranks of the mesh. What has no placement is whole on each of them.

    Throws UsageError where nothing is placed, or tensors lie over meshes that are no slices of one.
    """
    meshes = list(dict.fromkeys(placement.mesh for placement in placements.values()))
    if not meshes:
        raise UsageError(
            "no tensor is a DTensor, so none says which ranks hold it. Call fully_shard(model) "
            "first, or name the layout, e.g. 'fsdp2(8)' or 'replicated(8)'."
        )
    if len(meshes) > 1:
        shown = " and ".join(f"{list(m.sizes)} of ranks {list(m.ranks)}" for m in meshes[:2])
        raise UsageError(
            f"tensors lie over different meshes: {shown}. Slice them from one mesh with named "
            "axes, or pass a layout that is bound to a spec."
        )
    cuts = {name: placements[name].cuts if name in placements else () for name, _, _ in rows}
    rule = _core.LayoutRule(
        "the placements of its DTensors", _core_mesh(meshes[0]), _rules(cuts), []
    )
    return _core.bind(rule, spec)


def own_boxes(placements: Mapping[str, Placement]) -> dict[str, Box]:
    """Start and size of what this rank has of each placed tensor, as its placement says. Looks at
    no other rank."""
    boxes = {}
    for name, each in placements.items():
        if each.rank is not None:
            mesh, rule = _core_mesh(each.mesh), _core_rule(each.cuts)
            position = each.mesh.ranks.index(each.rank)
            boxes[name] = _core.share_of(each.shape, rule, mesh, position)
    return boxes


@functools.lru_cache(maxsize=64)
def _core_mesh(mesh: MeshPlan) -> _core.Mesh:
    axes = [(f"axis {axis}", size) for axis, size in enumerate(mesh.sizes)]
    return _core.Mesh(axes, list(mesh.ranks))


@functools.lru_cache(maxsize=64)
def _core_rule(cuts: Cuts, name: str = "**") -> _core.TensorRule:
    return _core.TensorRule(name, cuts=[_core.Cut(dim, axis, "chunk") for dim, axis in cuts])


def _rules(cuts: Mapping[str, Cuts]) -> list[_core.TensorRule]:
    """A rule for each kind of name, and one for each tensor that is cut otherwise than most of its
    kind."""
    kinds: defaultdict[str, Counter[Cuts]] = defaultdict(Counter)
    for name, each in cuts.items():
        kinds[template_of(name)][each] += 1
    usual = {template: counts.most_common(1)[0][0] for template, counts in kinds.items()}
    rules = dict(usual)
    rules |= {name: each for name, each in cuts.items() if each != usual[template_of(name)]}
    return [_core_rule(each, name) for name, each in rules.items()]


def check_placed(layout: Any, rank: int, side: str, placements: Mapping[str, Placement]) -> None:
    """Throws UsageError where a DTensor of this rank holds another part than `layout` says. Names
    are those of the layout's local tensors."""
    if not placements:
        return
    said: defaultdict[str, list[Box]] = defaultdict(list)
    for _, local, start, size, *_ in layout.pieces(rank):
        said[local].append((start, size))
    for name, (start, size) in own_boxes(placements).items():
        if said[name] == ([(start, size)] if math.prod(size) else []):
            continue
        raise UsageError(
            f"{side} tensor {name!r} is {_slices(start, size)} of the whole on rank {rank}, as its "
            f"DTensor says: {placements[name]}. {layout.text} has {_said(said[name])} there. Pass "
            "hybridengine.Layout.of(model), which reads meshes and placements, or the layout that "
            "they have."
        )


def _said(boxes: list[Box]) -> str:
    if len(boxes) > 1:
        return f"{len(boxes)} parts of several tensors in it"
    return _slices(*boxes[0]) if boxes else "nothing of it"


def _slices(start: Sequence[int], size: Sequence[int]) -> str:
    parts = (f"{first}:{first + n}" for first, n in zip(start, size, strict=True))
    return f"[{', '.join(parts)}]"
