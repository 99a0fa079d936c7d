"""Rivals by torch.distributed over gloo, in the same processes, on the same job.

They move whole tensors, one after the other, as trainers do that know no better: every destination
rank gets the full tensor and takes its pieces out of it. *Holders* of a tensor are source ranks
with a part of it; each box counts for the first rank that holds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from hybridengine import tensors as memory
from hybridengine._bench.gloo_collectives import all_gather_single
from hybridengine._bench.move import MoveJob
from hybridengine._bench.pattern import as_bits
from hybridengine._bench.record import RivalFactory, Unfit
from hybridengine._bench.world import World
from hybridengine.layouts.layout import LayoutRule

Place = tuple[str, tuple[int, ...], tuple[int, ...], int, tuple[int, ...]]


@dataclass
class Share:
    """What a source rank contributes to a tensor: boxes, and where they lie in its memory."""

    rank: int
    places: list[Place]  # local tensor, box start, box size, offset, strides

    @property
    def elems(self) -> int:
        return sum(math.prod(size) for _, _, size, _, _ in self.places)


class FullTensors:
    """What the rivals share: who holds what, and taking a destination's pieces from a whole."""

    def __init__(self, job: MoveJob) -> None:
        self.job = job
        self.tensors = [
            (name, shape, getattr(torch, dtype)) for name, shape, dtype in job.src.spec.tensors
        ]
        self.shares = _shares(job)
        self.wanted: dict[str, list[Place]] = {}
        for name, *place in job.dst.pieces(job.rank):
            self.wanted.setdefault(name, []).append(tuple(place))  # type: ignore[arg-type]

    def contribution(self, share: Share) -> torch.Tensor:
        """This rank's boxes of a tensor, one after the other; a view where there is one."""
        parts = [
            memory.view(as_bits(self.job.sources[local]), size, strides, offset).reshape(-1)
            for local, _, size, offset, strides in share.places
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def assemble(self, whole: torch.Tensor, share: Share, flat: torch.Tensor) -> None:
        """Writes a contribution to its place."""
        done = 0
        for _, start, size, _, _ in share.places:
            count = math.prod(size)
            box = whole[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]
            box.copy_(flat[done : done + count].view(size))
            done += count

    def take(self, name: str, whole: torch.Tensor, results: dict[str, torch.Tensor]) -> None:
        for local, start, size, offset, strides in self.wanted.get(name, []):
            box = whole[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]
            memory.view(as_bits(results[local]), size, strides, offset).copy_(box)


def _shares(job: MoveJob) -> dict[str, list[Share]]:
    """By tensor, in the order of ranks."""
    seen: set[tuple[Any, ...]] = set()
    shares: dict[str, dict[int, Share]] = {}
    for rank in job.src.ranks:
        for name, local, start, size, offset, strides in job.src.pieces(rank):
            if (name, start, size) in seen:
                continue
            seen.add((name, start, size))
            share = shares.setdefault(name, {}).setdefault(rank, Share(rank, []))
            share.places.append((local, start, size, offset, strides))
    return {name: list(by_rank.values()) for name, by_rank in shares.items()}


def gloo_all_gather(world: World, job: MoveJob) -> Callable[[], Any]:
    """Every rank of the job gathers each tensor whole. Where all ranks hold chunks of dim 0, as
    with FSDP2, that is one all_gather of padded chunks; elsewhere every holder broadcasts
    its part, as torch does for uneven lists."""
    full = FullTensors(job)
    members = sorted({*job.src.ranks, *job.dst.ranks})
    group = world.gloo_group(members)

    def run() -> dict[str, torch.Tensor] | None:
        if job.rank not in members:
            return None
        results = job.results()
        for name, shape, dtype in full.tensors:
            shares = full.shares.get(name, [])
            rows = _chunk_rows(shape, shares, members)
            if rows is not None:
                whole = _gather_chunks(full, shape, dtype, shares, rows, group, members)
            else:
                whole = _broadcast_shares(full, shape, dtype, shares, group)
            full.take(name, whole, results)
        return results

    return run


def _chunk_rows(shape: tuple[int, ...], shares: list[Share], members: list[int]) -> int | None:
    """Rows of a chunk where member k holds rows k*chunk to (k+1)*chunk; None elsewhere."""
    if not shape or math.prod(shape) == 0:
        return None
    rows = -(-shape[0] // len(members))
    expected = [
        (member, (at, *[0] * (len(shape) - 1)), (min(rows, shape[0] - at), *shape[1:]))
        for at, member in zip(range(0, shape[0], rows), members, strict=False)
    ]
    found = [(s.rank, place[1], place[2]) for s in shares for place in s.places]
    return rows if found == expected else None


def _gather_chunks(
    full: FullTensors,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    shares: list[Share],
    rows: int,
    group: Any,
    members: list[int],
) -> torch.Tensor:
    bits = _bits(dtype)
    length = rows * math.prod(shape[1:])
    mine = torch.empty(0, dtype=bits)
    for share in shares:
        if share.rank == full.job.rank:
            mine = full.contribution(share)
    if mine.numel() < length:
        mine = torch.cat([mine, torch.zeros(length - mine.numel(), dtype=bits)])
    gathered = torch.empty(length * len(members), dtype=bits)
    all_gather_single(_bytes(gathered), _bytes(mine), group=group)
    return gathered[: math.prod(shape)].view(shape)


def _broadcast_shares(
    full: FullTensors, shape: tuple[int, ...], dtype: torch.dtype, shares: list[Share], group: Any
) -> torch.Tensor:
    whole = torch.empty(shape, dtype=_bits(dtype))
    for share in shares:
        if share.rank == full.job.rank:
            flat = full.contribution(share)
        else:
            flat = torch.empty(share.elems, dtype=whole.dtype)
        dist.broadcast(_bytes(flat), src=share.rank, group=group)
        full.assemble(whole, share, flat)
    return whole


def rank0_broadcast(world: World, job: MoveJob) -> Callable[[], Any]:
    """The first source rank collects each tensor whole and broadcasts it to every destination
    rank."""
    full = FullTensors(job)
    root = job.src.ranks[0]
    senders = world.gloo_group(job.src.ranks)
    receivers = sorted({root, *job.dst.ranks})
    group = world.gloo_group(receivers)

    def run() -> dict[str, torch.Tensor] | None:
        results = job.results() if job.rank in job.dst.ranks else {}
        for name, shape, dtype in full.tensors:
            whole = torch.empty(shape if job.rank in receivers else (0,), dtype=_bits(dtype))
            for share in full.shares.get(name, []):
                _to_root(full, share, whole, root, senders)
            if job.rank in receivers and whole.numel() > 0:
                dist.broadcast(_bytes(whole), src=root, group=group)
                full.take(name, whole, results)
        return results

    return run


def _to_root(full: FullTensors, share: Share, whole: torch.Tensor, root: int, group: Any) -> None:
    if full.job.rank == root:
        if share.rank == root:
            flat = full.contribution(share)
        else:
            flat = torch.empty(share.elems, dtype=whole.dtype)
            dist.recv(_bytes(flat), src=share.rank, group=group)
        full.assemble(whole, share, flat)
    elif full.job.rank == share.rank:
        dist.send(_bytes(full.contribution(share)), dst=root, group=group)


def dtensor_full_tensor(world: World, job: MoveJob) -> Callable[[], Any]:
    """full_tensor() of FSDP2's DTensors on every source rank; the first of them broadcasts to
    destination ranks that are no source rank."""
    rule = LayoutRule.parse(job.src.text)
    if rule.family != "fsdp2" or rule.arg("tp") > 1 or rule.arg("replicas") > 1:
        raise Unfit(f"the source is {job.src.text}, not a plain fsdp2(n)")
    from torch.distributed.device_mesh import DeviceMesh

    full = FullTensors(job)
    world.join_gloo()
    mesh = DeviceMesh("cpu", list(rule.ranks))
    root = job.src.ranks[0]
    outside = sorted(set(job.dst.ranks) - set(job.src.ranks))
    group = world.gloo_group([root, *outside]) if outside else None

    def run() -> dict[str, torch.Tensor] | None:
        results = job.results() if job.rank in job.dst.ranks else {}
        for name, shape, dtype in full.tensors:
            if job.rank in job.src.ranks:
                whole = _full_tensor(job.sources[name], shape, mesh)
            elif job.rank in outside:
                whole = torch.empty(shape, dtype=dtype)
            else:
                continue
            if (job.rank == root or job.rank in outside) and outside and whole.numel() > 0:
                dist.broadcast(_bytes(whole), src=root, group=group)
            full.take(name, as_bits(whole).view(shape), results)
        return results

    return run


def _full_tensor(local: torch.Tensor, shape: tuple[int, ...], mesh: Any) -> torch.Tensor:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    strides = torch.empty(shape, device="meta").stride()
    placement = [Shard(0) if shape else Replicate()]
    return DTensor.from_local(
        local, mesh, placement, run_check=False, shape=torch.Size(shape), stride=strides
    ).full_tensor()


def gloo_send_recv(world: World, job: MoveJob) -> Callable[[], Any]:
    """send() and recv() of each tensor, from the only source rank to the only destination rank."""
    (src,), (dst,) = job.src.ranks, job.dst.ranks
    group = world.gloo_group([src, dst])

    def run() -> dict[str, torch.Tensor] | None:
        if job.rank == src:
            for tensor in job.sources.values():
                dist.send(_bytes(tensor), dst=dst, group=group)
        if job.rank != dst:
            return None
        results = job.results()
        for tensor in results.values():
            dist.recv(_bytes(tensor), src=src, group=group)
        return results

    return run


def _bits(dtype: torch.dtype) -> torch.dtype:
    return as_bits(torch.empty(1, dtype=dtype)).dtype


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """gloo knows no 16-bit integers, but bytes."""
    return tensor.reshape(-1).view(torch.uint8)


RESHARD_RIVALS: dict[str, RivalFactory] = {
    "gloo_all_gather": gloo_all_gather,
    "dtensor_full_tensor": dtensor_full_tensor,
    "rank0_broadcast": rank0_broadcast,
}
SEND_RECV_RIVALS: dict[str, RivalFactory] = {"gloo_send_recv": gloo_send_recv}
