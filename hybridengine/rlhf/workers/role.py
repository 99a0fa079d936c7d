"""role: what a rank does, as a class; and how a call on a group becomes calls on its ranks.

A *role* is an object that every rank of a pool holds: the actor, the critic, a reward model. Its
decorated methods are what the controller may call; several roles share a rank and its context.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from hybridengine._core import UsageError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from hybridengine.comm import Communicator

_MARK = "_dispatch"
_MODES = ("one_to_all", "by_rank")
_COLLECTS = ("all", "first", "last", "none")
_RETURNS = ("value", "reference")

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass
class RankContext:
    """What a rank knows of itself; the same object for all roles of the rank.

    `group` is the torch.distributed group over the pool, `mesh` its ranks in a row (axis `dp`),
    `comm` the engine's communicator over the same ranks, `store` where they met. `roles` are those
    that this rank holds.
    """

    pool: str
    rank: int
    world: int
    host: str
    device: torch.device
    group: ProcessGroup
    mesh: DeviceMesh
    comm: Communicator
    store: Any
    roles: dict[str, Role] = field(default_factory=dict)
    last_progress: float = field(default_factory=time.monotonic)

    def split(self, size: int, name: str) -> Communicator:
        """A communicator over the `size` ranks of this rank's group: ranks 0 to size - 1 are the
        first group. `name` is used once in a pool. Collective within the group."""
        from hybridengine.comm import Communicator

        group, rank = divmod(self.rank, size)
        return Communicator(self.store, rank, size, name=f"{self.pool}.{name}.{group}")

    def progress(self) -> None:
        """Says that a long method still gets on: its time limit starts anew."""
        self.last_progress = time.monotonic()


class Role:
    """Base of roles. All ranks of a pool make theirs at the same time, so that it may do what is
    collective. A subclass has the same arguments."""

    def __init__(self, context: RankContext, config: Any) -> None:
        self.context = context
        self.config = config


@dataclass(frozen=True)
class Dispatch:
    """How a method of a role is called on a group; see `dispatch`."""

    mode: str
    collect: str
    returns: str


def dispatch(
    mode: str = "one_to_all", *, collect: str = "all", returns: str = "value"
) -> Callable[[Method], Method]:
    """Marks a method of a role as one that the controller calls on all ranks of a group.

    `mode`: `one_to_all`, every rank gets the same arguments; `by_rank`, the first argument is a
    list with one entry for each rank, the others are the same. `collect`: what the call on the
    group gives back: `all` results in a list by rank, that of the `first` rank, that of the `last`
    (with pipeline stages it is in the last one), or `none`. `returns`: `value`, or `reference`: the
    method returns (value, summary), the value stays where it is, and the controller gets a
    Reference with the summary. Throws UsageError on other words.
    """
    for name, word, known in (
        ("mode", mode, _MODES),
        ("collect", collect, _COLLECTS),
        ("returns", returns, _RETURNS),
    ):
        if word not in known:
            raise UsageError(f"dispatch: {name}={word!r} is not known. Use {', '.join(known)}.")

    def mark(method: Method) -> Method:
        setattr(method, _MARK, Dispatch(mode, collect, returns))
        return method

    return mark


def dispatched_methods(role: type[Role]) -> dict[str, Dispatch]:
    """The decorated methods of a role's class, also inherited ones, by name."""
    marked = {name: getattr(getattr(role, name), _MARK, None) for name in dir(role)}
    return {name: mark for name, mark in marked.items() if mark is not None}
