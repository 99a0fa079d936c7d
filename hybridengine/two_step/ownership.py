"""ownership: which tensors train, and which rank updates what of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.agreement import agree
from hybridengine.comm import Communicator
from hybridengine.layouts.layout import Layout

_MASTER_DTYPE = "float32"
# How much more a rank may own where that spares a movement.
_FAIR_SHARE = 1.05


def owners_for(train: Layout, gen: Layout) -> Layout:
    """Who updates what: each rank a part of its generation boxes, and of that what it also has in
    training, where neither leaves a rank with more to do."""
    owners = Layout(_core.owners_of(gen.core, _MASTER_DTYPE))
    both = _core.common_part(gen.core, train.core)
    if both is None:
        return owners
    nearer = Layout(_core.owners_of(both, _MASTER_DTYPE))
    most, least = (max(map(each.num_bytes, each.ranks)) for each in (nearer, owners))
    return nearer if most <= _FAIR_SHARE * least else owners


def agree_on_trained(comm: Communicator, train: Layout, mine: list[str]) -> list[str]:
    """The logical tensors that train, from the local names that do. Throws UsageError on every rank
    where the ranks of `train` contradict each other, or nothing trains."""
    return agree(comm, lambda: {"names": mine}, lambda shown: _trained(train, shown))


def _trained(train: Layout, shown: list[Mapping[str, Any]]) -> list[str]:
    replies = [each["names"] for each in shown]
    first = train.ranks[0]
    for rank in train.ranks:
        for name in sorted(set(replies[rank]) ^ set(replies[first])):
            on, off = (rank, first) if name in replies[rank] else (first, rank)
            raise UsageError(
                f"{name!r} trains on rank {on} and not on rank {off}. Freeze it on all ranks or on "
                "none."
            )
    locals_ = set(replies[first])
    pieces = train.pieces(first)
    trained = {tensor for tensor, local, *_ in pieces if local in locals_}
    partly = trained & {tensor for tensor, local, *_ in pieces if local not in locals_}
    if not trained or partly:
        raise UsageError(
            f"{sorted(partly)[0]!r} trains only in part. Freeze all of it or nothing."
            if partly
            else "no parameter trains: requires_grad is False everywhere. Unfreeze some."
        )
    wide = [name for name, _, dtype in train.spec.tensors if name in trained and dtype == "float64"]
    if wide:
        raise UsageError(
            f"{wide[0]!r} is float64, but masters are {_MASTER_DTYPE}. Convert the module."
        )
    return [name for name, _, _ in train.spec.tensors if name in trained]
