"""comm: a Communicator is this rank among the others."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.util import Finalize
from typing import Any

from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.options import seconds, text, whole
from hybridengine.rendezvous import Store, check_store, exchange
from hybridengine.turns import Turns
from hybridengine.wording import kind_of

_EXIT_SECONDS = 2.0  # for a thread that waits in a call when the interpreter exits


class Communicator:
    """One rank's end. Every rank of the group makes one; making it blocks until all have.

    After a TransportError or TimeoutError it is dead on every rank, and a new one works.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        *,
        name: str = "default",
        transport: str | None = None,
        timeout: float | None = None,
        enter_timeout: float | None = None,
    ) -> None:
        """`name` tells communicators of one store apart and is used once.

        `transport` is a name or "auto"; `timeout` (seconds without progress) and `enter_timeout`
        (seconds a living rank may take to enter a call) come from the environment unless given.
        Throws UsageError on a transport that is not available, TimeoutError naming the ranks that
        did not come.
        """
        check_store(store)
        rank, world = whole("rank", rank), whole("world", world)
        timeout = seconds("timeout", timeout)
        enter_timeout = seconds("enter_timeout", enter_timeout)
        name = text("name", name)
        transport = None if transport is None else text("transport", transport)
        _core.refresh_log()
        _core.refresh_trace()
        if transport == "loopback":
            _core.set_thread_rank(rank)
        elif not _open:  # outside of calls a process speaks as the rank of its first communicator
            _core.set_rank(rank)
        self.timeout: float = _core.env_timeout_s() if timeout is None else timeout
        self.core = _core.Communicator(
            _core.env_transport() if transport is None else transport,
            rank,
            world,
            name,
            self.timeout,
            _core.env_enter_timeout_s() if enter_timeout is None else enter_timeout,
        )
        self.name = name
        self._transport = self.core.transport
        self.turns = Turns(name, repr(self))
        _open.add(self)
        _close_at_exit()
        try:
            address = self.core.address()
            self.core.connect(exchange(store, name, rank, world, address, self.timeout))
        except BaseException:
            self.close()
            raise

    @property
    def rank(self) -> int:
        return self.core.rank

    @property
    def world(self) -> int:
        return self.core.world

    @property
    def dead(self) -> bool:
        """Whether it was closed, or a rank failed: a new one is needed."""
        return self.core.dead

    @property
    def transport(self) -> str:
        """Name of the transport in use."""
        return self._transport

    @contextmanager
    def call(self, timeout: float | None = None) -> Iterator[None]:
        """A collective call: every rank enters the same ones in the same order.

        What is raised inside reaches every other rank as a TransportError that quotes it.
        """
        with self.turns, self.between_calls():
            self.core.set_timeout(self.timeout if timeout is None else timeout)
            self.core.enter()
            yield
            self.core.leave()

    @contextmanager
    def between_calls(self) -> Iterator[None]:
        """What is raised inside, of whatever class, reaches every other rank as from a call(): they
        wait for this one. But for what was raised within agreed()."""
        before = _core.set_thread_rank(self.rank)
        try:
            yield
        except BaseException as error:
            if getattr(error, "agreed_by", None) != id(self):
                self.core.fail(_printable(f"{type(error).__name__}: {error}"))
            raise
        finally:
            _core.set_thread_rank(before)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Around what every rank decides alike, from what all of them know: a UsageError that is
        raised here is raised by all of them, so none waits and the communicator goes on."""
        try:
            yield
        except UsageError as error:
            error.agreed_by = id(self)  # type: ignore[attr-defined]
            raise

    def gather(self, parts: list[bytes]) -> list[list[bytes]]:
        """Every rank's parts, by rank; equal ones are one object and travel once. Within a
        call()."""
        return self.core.gather(parts)

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Every rank's bytes, by rank. Within a call()."""
        return [each for (each,) in self.gather([mine])]

    def close(self) -> None:
        """Says goodbye. Later use raises TransportError."""
        _open.discard(self)
        self.turns.stop()
        self.core.close()

    def __repr__(self) -> str:
        state = ", dead" if self.dead else ""
        place = f"rank {self.rank} of {self.world}"
        return f"Communicator({self.name!r}, {place}, {self.transport}{state})"


def communicator_of(comm: Any, transport: str | None = None) -> Communicator:
    """`comm`, or the default group's where it is None. Throws UsageError on anything else."""
    if comm is None:
        return group_communicator(None, transport)
    if isinstance(comm, Communicator):
        return comm
    raise UsageError(
        f"comm is {kind_of(comm)}, not a Communicator. Leave it out for torch's default process "
        "group. For another group pass hybridengine.comm.group_communicator(group), and without "
        "groups hybridengine.Communicator(store, rank, world)."
    )


def group_communicator(group: Any = None, transport: str | None = None) -> Communicator:
    """The communicator over a torch.distributed group (default: the default group).

    Made at the first call and kept for the group's life, or until it dies.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if not dist.is_initialized():
        raise UsageError(
            "there is no process group. Call torch.distributed.init_process_group() first, or pass "
            "comm=hybridengine.Communicator(store, rank, world)."
        )
    group = dist.group.WORLD if group is None else group
    key = (id(group), transport)
    kept = _by_group.get(key)
    if kept is not None and kept[0] is group and not kept[1].dead:
        return kept[1]
    ranks = dist.get_process_group_ranks(group)
    base = f"{','.join(map(str, ranks))}/{transport}"
    name = f"{base}/{_incarnations.setdefault(base, 0)}"
    _incarnations[base] += 1
    comm = Communicator(
        c10d._get_default_store(),
        dist.get_rank(group),
        len(ranks),
        name=name,
        transport=transport,
    )
    _by_group[key] = (group, comm)
    return comm


def _printable(text: str) -> str:
    """`text` without what UTF-8 cannot carry."""
    return text.encode(errors="backslashreplace").decode()


_open: weakref.WeakSet[Communicator] = weakref.WeakSet()
_by_group: dict[tuple[int, str | None], tuple[Any, Communicator]] = {}
_incarnations: dict[str, int] = {}


def _close_at_exit() -> None:
    """Threads of ours, and threads that wait in a call, must be gone before the interpreter is; and
    peers get a farewell.

    Children of multiprocessing leave without atexit, but run its finalizers.
    """
    if os.getpid() in _registered:
        return
    _registered.add(os.getpid())
    atexit.register(_close_all)
    if multiprocessing.parent_process() is not None:
        Finalize(None, _close_all, exitpriority=10)


def _close_all() -> None:
    _by_group.clear()
    still_open = list(_open)
    for comm in still_open:
        comm.core.cancel()
    deadline = time.monotonic() + _EXIT_SECONDS
    for comm in still_open:
        if comm.turns.take(max(0.0, deadline - time.monotonic())):
            comm.close()
    _core.flush_trace()


_registered: set[int] = set()
