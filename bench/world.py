"""World: this rank among the ranks of a benchmark, and the two ways in which ranks come to be.

Either they are processes of this host that the command starts, or torchrun has started them. What
rank 0 has to say goes through `tell`, so that one place prints.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hybridengine import launch
from hybridengine._core import TransportError, UsageError
from hybridengine.comm import Communicator, group_communicator

Tell = Callable[[Any], None]

# Ranks of one start come within less.
_SILENCE_S = 5.0
_KNOCK_S = 0.5


class World:
    """Every method but tell() is collective: all ranks call the same ones in the same order."""

    def __init__(self, comm: Communicator, tell: Tell) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.world
        self._tell = tell
        self._group_is_ours = False
        self._groups: dict[tuple[int, ...], Any] = {}

    def tell(self, event: Any) -> None:
        """Hands an event to whoever prints, from rank 0 only."""
        if self.rank == 0:
            self._tell(event)

    def barrier(self) -> None:
        with self.comm.call():
            self.comm.all_gather(b"")

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value (JSON-ready), by rank."""
        with self.comm.call():
            return [json.loads(each) for each in self.comm.all_gather(json.dumps(value).encode())]

    def total(self, count: int) -> int:
        return sum(self.gather(count))

    def who(self) -> list[dict[str, Any]]:
        """Process and host of every rank, and how many cores it may use."""
        return self.gather(
            {
                "rank": self.rank,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "cores": num_cores(),
            }
        )

    def gloo_group(self, ranks: list[int]) -> Any:
        """torch's gloo group over `ranks`, for rivals; a placeholder on other ranks."""
        self.join_gloo()
        key = tuple(sorted(ranks))
        if key not in self._groups:
            self._groups[key] = dist.new_group(list(key), backend="gloo")
        return self._groups[key]

    def join_gloo(self) -> None:
        """A default group over all ranks, unless torchrun's is there already."""
        if dist.is_initialized():
            return
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # these ranks share a host
        if self.rank == 0:
            with tempfile.NamedTemporaryFile(prefix="hybridengine.", delete=False) as file:
                self._store_path = file.name
        path = self.gather(self._store_path if self.rank == 0 else "")[0]
        store = dist.FileStore(path, self.size)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size)
        self._group_is_ours = True

    def close(self) -> None:
        if not self._group_is_ours:
            return
        self.barrier()
        dist.destroy_process_group()
        self.barrier()
        if self.rank == 0:
            Path(self._store_path).unlink(missing_ok=True)


def num_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def under_torchrun() -> bool:
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def run_on_ranks(
    size: int,
    asked: int | None,
    transport: str,
    timeout: float | None,
    tell: Tell,
    function: Callable[..., Any],
    *args: Any,
) -> Any:
    """function(world, *args) on every rank; rank 0's result, or this rank's own under torchrun.

    `size` ranks are needed and `asked` were asked for. Throws UsageError where they do not fit.
    """
    if asked is not None and asked < size:
        raise UsageError(f"-g {asked} is too few: {size} ranks are needed. Leave -g out.")
    forced = None if transport == "auto" else transport
    if not under_torchrun():
        count = size if asked is None else asked
        return launch.run_local(
            count,
            _on_local_rank,
            function,
            args,
            transport=forced,
            timeout=timeout,
            on_event=lambda _, event: tell(event),
        )[0]
    _, given = _place_of_torchrun()
    if given < size or (asked is not None and asked != given):
        wanted = size if asked is None else asked
        raise UsageError(f"torchrun started {given} ranks, {wanted} are wanted. Start so many.")
    return _on_torchrun_rank(forced, timeout, tell, function, args)


def _on_local_rank(comm: Communicator, function: Callable[..., Any], args: Any) -> Any:
    world = World(comm, launch.tell)
    result = function(world, *args)
    world.close()
    return result


def _on_torchrun_rank(
    transport: str | None,
    timeout: float | None,
    tell: Tell,
    function: Callable[..., Any],
    args: Any,
) -> Any:
    _meet()
    try:
        comm = group_communicator(None, transport)
        if timeout is not None:
            comm.timeout = timeout
        return function(World(comm, tell), *args)
    finally:
        dist.destroy_process_group()


def _meet() -> None:
    """Joins the ranks that torchrun started; says whom it waits for where that takes long.

    Throws TransportError where they do not come, after the 30 minutes that torch waits too.
    """
    rank, world = _place_of_torchrun()
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    teller = threading.Timer(_SILENCE_S, _say_waiting, (rank, world, f"{host}:{port}"))
    teller.daemon = True
    teller.start()
    try:
        if rank != 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            _knock(host, int(port))
        dist.init_process_group("gloo")
    except (OSError, dist.DistError) as error:
        if "EADDRINUSE" in str(error):
            raise TransportError(
                f"rank {rank} cannot listen at {host}:{port}, as MASTER_ADDR and MASTER_PORT say: "
                "another program does. Set MASTER_PORT (torchrun: --master-port) to a free port."
            ) from error
        why = str(error).split("\n")[0].rstrip(".")
        raise TransportError(
            f"rank {rank} of {world} did not meet the others at {host}:{port}: {why}. Start all of "
            f"them, or unset RANK to start ranks here."
        ) from error
    finally:
        teller.cancel()


def _knock(host: str, port: int) -> None:
    """Waits until somebody listens there: torch does not notice signals in this wait, and writes
    its own stack for each. Throws OSError."""
    deadline = time.monotonic() + dist.default_pg_timeout.total_seconds()
    while True:
        try:
            socket.create_connection((host, port), timeout=_KNOCK_S).close()
            return
        except socket.gaierror:
            raise
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_KNOCK_S)


def _say_waiting(rank: int, world: int, where: str) -> None:
    sys.stderr.write(
        f"hybridengine: rank {rank} of {world} waits for the others at {where}. RANK and "
        f"WORLD_SIZE say that torchrun or a batch system started it; unset RANK to start ranks "
        f"here.\n"
    )


def _place_of_torchrun() -> tuple[int, int]:
    """Rank and number of ranks. Throws UsageError."""
    rank, world, port = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    numbers = rank.isdecimal() and world.isdecimal() and port.isdecimal()
    if not numbers or int(rank) >= int(world):
        raise UsageError(
            f"RANK={rank}, WORLD_SIZE={world} and MASTER_PORT={port} are no place of a rank. Start "
            f"with torchrun, or unset RANK to start ranks here."
        )
    return int(rank), int(world)
