"""role: what a rank does, as a class; and how a call on a group becomes calls on its ranks.

A *role* is an object that every rank of a pool holds: the actor, the critic, a reward model. Its
decorated methods are what the controller may call; several roles share a rank. The ranks of a role
form *places*: those of a place have the same rows, since they share the layers of one model. With
FSDP2 every rank is a place, with tensor parallelism each group of ranks that shares layers is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from hybridengine._core import UsageError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from hybridengine.comm import Communicator

_MARK = "_dispatch"
_MODES = ("one_to_all", "by_place")
_COLLECTS = ("all", "first", "last", "none")
_RETURNS = ("value", "reference")

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass
class Pulse:
    """When a rank last got on."""

    at: float = field(default_factory=time.monotonic)


@dataclass
class RankContext:
    """What a rank knows of itself, and of its place in a role.

    `group` is the torch.distributed group over the pool, `mesh` its ranks in a row (axis `dp`),
    `comm` the engine's communicator over the same ranks, `store` where they met. `roles` are those
    that this rank holds. `place_size` ranks in a row are a place of `role`.
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
    pulse: Pulse = field(default_factory=Pulse)
    role: str = ""
    place_size: int = 1
    _comms: dict[str, Communicator] = field(default_factory=dict)  # those of places, made when used

    def of_role(self, role: str, place_size: int) -> RankContext:
        """The same rank as one of `role`, whose places have `place_size` ranks."""
        return replace(self, role=role, place_size=place_size, _comms={})

    @property
    def place(self) -> int:
        return self.rank // self.place_size

    @property
    def num_places(self) -> int:
        return self.world // self.place_size

    @property
    def place_comm(self) -> Communicator:
        """Over the ranks of this place. Made at its first use: collective within the place then."""
        return self._comm_of("place", self.place, self.rank % self.place_size, self.place_size)

    @property
    def data_comm(self) -> Communicator:
        """Over one rank of each place: a sum over it counts every row once. Made at its first use:
        collective over all ranks then."""
        if self.place_size == 1:
            return self.comm
        return self._comm_of("data", self.rank % self.place_size, self.place, self.num_places)

    def progress(self) -> None:
        """Says that a long method still gets on: its time limit starts anew."""
        self.pulse.at = time.monotonic()

    def _comm_of(self, what: str, number: int, rank: int, world: int) -> Communicator:
        from hybridengine.comm import Communicator

        if what not in self._comms:
            name = f"{self.pool}.{self.role}.{what}.{number}"
            self._comms[what] = Communicator(self.store, rank, world, name=name)
        return self._comms[what]


class Role:
    """Base of roles. All ranks of a pool make theirs at the same time, so that it may do what is
    collective. A subclass has the same arguments."""

    def __init__(self, context: RankContext, config: Any) -> None:
        self.context = context
        self.config = config

    @classmethod
    def place_size(cls, config: Any) -> int:
        """How many ranks in a row have the same rows. Asked on the controller and on the ranks."""
        return 1


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

    `mode`: `one_to_all`, every rank gets the same arguments, and answers; `by_place`, the first
    argument is a list with one entry for each place, whose ranks all get it, the others are the
    same, and the first rank of a place answers for it. `collect`: what the call on the group gives
    back: `all` answers in a list, the `first`, the `last`, or `none`. `returns`: `value`, or
    `reference`: the method returns (value, summary), the value stays where it is, and the
    controller gets a Reference with the summary. Throws UsageError on other words.
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
