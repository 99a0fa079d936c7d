"""rank: the process of one rank. It holds roles and runs their methods, one at a time.

What a method raises does not leave it as an exception but as a Failure, so that the controller
can tell cause from echo. More threads answer while a method runs: one is asked how far it is, one
waits for ever, so that the controller sees the end of the process at once, and one cuts what this
rank has made into parts that others take.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

import hybridengine
from hybridengine import _core
from hybridengine.rlhf.workers.failure import Failure
from hybridengine.rlhf.workers.reference import Reference, Resolver, Stored, cut_rows
from hybridengine.rlhf.workers.role import RankContext, Role

_ENGINE = Path(hybridengine.__file__).parent
_TRAINER = _ENGINE / "rlhf"

_STORE_WAIT_S = 300.0
_PARENT_POLL_S = 0.5

# The concurrency groups of what answers while a method runs, and their threads.
ASIDE = {"watch": 2, "rows": 1}


@dataclass(frozen=True)
class Returned:
    """What a method returned, or the summary of it."""

    value: Any


@dataclass(frozen=True)
class Running:
    """What a rank does: for how long without progress, and where it is; see RankProcess.state."""

    idle_s: float
    place: str
    in_collective: bool  # it probably waits for another rank


class RankProcess:
    """An actor of Ray; the controller's end is Pool."""

    def __init__(
        self, pool: str, rank: int, world: int, env: Mapping[str, str], folder: str | None
    ) -> None:
        """`folder`: the controller's, where relative paths begin; it may lack on another host, and
        the controller may have none that exists."""
        os.environ.update(env)  # before torch is loaded, which reads some of it then
        if folder is not None and os.path.isdir(folder):
            os.chdir(folder)
        os.dup2(2, 1)  # what a rank prints is a log
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
        self._pool, self._rank, self._world = pool, rank, world
        self._context: RankContext | None = None
        self._store: Any = None
        self._resolver = Resolver()
        self._started: float | None = None  # of the method that runs
        self._thread = 0

    def __repr__(self) -> str:
        return f"{self._pool}/{self._rank}"  # what Ray puts before lines of the log

    def prepare(self) -> Any:
        """Imports torch. Rank 0 opens the store that all meet at: Returned(its host and port)."""
        return self._run("prepare", self._prepare)

    def _prepare(self) -> tuple[str, int]:
        import torch.distributed as dist

        from hybridengine.rlhf.workers import wire

        wire.register()
        host = _host()
        if self._rank != 0:
            return host, 0
        # Port 0: the system finds a free one, and nobody can take it in between.
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            host, 0, is_master=True, wait_for_workers=False
        )
        return host, int(self._store.port)

    def join(self, host: str, port: int) -> Any:
        """Meets the other ranks at the store of rank 0. Collective."""
        return self._run("join", self._join, host, port)

    def _join(self, host: str, port: int) -> None:
        from datetime import timedelta

        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        from hybridengine.comm import Communicator

        wait = timedelta(seconds=_STORE_WAIT_S)
        if self._store is None:
            self._store = dist.TCPStore(  # type: ignore[attr-defined]
                host, port, is_master=False, timeout=wait
            )
        on_gpu = bool(ray.get_gpu_ids())
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=dist.PrefixStore("group", self._store),  # type: ignore[attr-defined]
            rank=self._rank,
            world_size=self._world,
        )
        assert dist.group.WORLD is not None
        device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
        self._context = RankContext(
            pool=self._pool,
            rank=self._rank,
            world=self._world,
            host=_host(),
            device=device,
            group=dist.group.WORLD,
            mesh=init_device_mesh(device.type, (self._world,), mesh_dim_names=("dp",)),
            comm=Communicator(self._store, self._rank, self._world, name=self._pool),
            store=self._store,
        )

    def start_role(self, name: str, role: type[Role], config: Any) -> Any:
        return self._run("__init__", self._start_role, name, role, config)

    def _start_role(self, name: str, role: type[Role], config: Any) -> None:
        assert self._context is not None
        config = self._resolver.resolve(config)
        context = self._context.of_role(name, role.place_size(config))
        self._context.roles[name] = role(context, config)

    def call(self, role: str, method: str, args: Any, kwargs: Any) -> Any:
        """Returned(result), or Failure."""
        return self._run(method, self._call, role, method, args, kwargs)

    def call_by_reference(self, role: str, method: str, args: Any, kwargs: Any) -> Any:
        """(value, Returned(summary)), or (None, Failure): two objects, of which the controller
        takes the second."""
        outcome = self._run(method, self._call_by_reference, role, method, args, kwargs)
        if isinstance(outcome, Failure):
            return None, outcome
        value, summary = outcome.value
        return value, Returned(summary)

    def _call(self, role: str, method: str, args: Any, kwargs: Any) -> Any:
        assert self._context is not None
        bound = getattr(self._context.roles[role], method)
        return bound(*self._resolver.resolve(args), **self._resolver.resolve(kwargs))

    def _call_by_reference(self, role: str, method: str, args: Any, kwargs: Any) -> Any:
        result = self._call(role, method, args, kwargs)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(
                f"it returns by reference, but returned a {type(result).__name__}. Return "
                f"(value, summary)."
            )
        return result

    def _run(self, method: str, function: Any, *args: Any) -> Any:
        self._thread = threading.get_ident()
        self._started = time.monotonic()
        try:
            return Returned(function(*args))
        except Exception as error:
            return Failure.of(error, method)
        finally:
            self._started = None
            _core.flush_trace()  # where there is one: a rank ends by being killed

    def state(self) -> Running:
        """How long the method that runs has made no progress (0: none runs), and its line."""
        started = self._started
        if started is None:
            return Running(0.0, "between calls", False)
        if self._context is not None:
            started = max(started, self._context.pulse.at)
        last = traceback.extract_stack(sys._current_frames()[self._thread])[-1]
        path = Path(last.filename)
        place = f"at {path.name}:{last.lineno}, in {last.name}"
        return Running(time.monotonic() - started, place, _moves_data(path))

    def cut(self, piece: Reference, parts: list[list[int]]) -> tuple[Stored, ...]:
        """The rows of each part, in this host's store. Waits until the piece is made; pieces are
        cut in the order in which they were asked for, which is that in which they are made."""
        return tuple(Stored(ray.put(rows)) for rows in cut_rows(ray.get(piece.ref), parts))

    def end(self) -> None:
        """Does not return: the call ends when the process does."""
        threading.Event().wait()


def _end_with_parent(parent: int) -> None:
    """Ends this process soon after Ray's on this host: a rank that hangs would not see it."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)


def _moves_data(path: Path) -> bool:
    """Whether a file is torch's or the engine's, and has the calls in which ranks wait."""
    if "torch/distributed" in path.as_posix():
        return True
    return _ENGINE in path.parents and _TRAINER not in path.parents


def _host() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
