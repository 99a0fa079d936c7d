"""Ranks for tests: a function on N local processes, or on N threads over loopback.

A rank function is at the top of its module, takes a Communicator first, and returns something
picklable. A process finds it by the name of its file: pytest may give the module a package that no
other process has.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from hybridengine._core import transports
from hybridengine.comm import Communicator
from hybridengine.processes.fork_server import end_fork_server

context = multiprocessing.get_context("forkserver")

# One server forks the processes of all tests: what they need is named here, once.
_PRELOADED = [
    "hybridengine.resharding.resharder",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch._dynamo",  # which DTensors import when they are first used
    "pytest",  # where a function lies in the module of its test
    "hypothesis",
    "transport_world",
]
context.set_forkserver_preload(_PRELOADED)
_server: int | None = None  # the process that forks, once it is ours


def use_own_server() -> None:
    """One that a launch() has started lacks what tests need, and every rank would import it: it
    ends."""
    global _server
    running = forkserver._forkserver._forkserver_pid
    if running is not None and running == _server:
        return
    end_fork_server()
    context.set_forkserver_preload(_PRELOADED)
    forkserver.ensure_running()
    _server = forkserver._forkserver._forkserver_pid


# Media that move bytes, also what a build has beyond ours (paper_transport.cc), and whether their
# ranks may be processes.
MEDIA = {row["name"]: row["caps"]["processes"] for row in transports() if row["caps"]["payload"]}


class MemoryStore:
    """The store of ranks that are threads."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = value

    def get(self, key: str) -> bytes:
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)


class RankFailed(AssertionError):
    """A rank raised what the test did not ask for."""


class Ranks:
    """N processes that run one function each; for tests that kill some of them."""

    def __init__(
        self,
        world: int,
        function: Callable[..., Any],
        *args: Any,
        transport: str = "shm",
        timeout: float = 20,
    ) -> None:
        use_own_server()
        self._folder = tempfile.TemporaryDirectory()
        path = str(Path(self._folder.name) / "store")
        self._pipes = []
        self.processes = []
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank_main,
                args=(theirs, path, rank, world, transport, timeout, _address(function), args),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def result(self, rank: int, limit: float = 60) -> Any:
        """One rank's ("ok", value), ("raised", type name, text), ("died", exit code) or ("hung",);
        it is dead after the last one."""
        pipe, process = self._pipes[rank], self.processes[rank]
        try:
            if pipe.poll(limit):
                return pipe.recv()
            process.kill()
            return ("hung",)
        except EOFError:
            process.join(5)
            return ("died", process.exitcode)

    def results(self, limit: float = 60) -> list[Any]:
        """Every rank's result(), and the end of all processes."""
        deadline = time.monotonic() + limit
        collected = [
            self.result(rank, max(0.0, deadline - time.monotonic()))
            for rank in range(len(self.processes))
        ]
        self.end(max(0.1, deadline - time.monotonic()))
        return collected

    def end(self, patience: float = 0.0) -> None:
        """Waits for the processes, and kills those that do not end."""
        deadline = time.monotonic() + patience
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()


def _address(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__.removeprefix("python_tests."), function.__qualname__


def _rank_main(
    pipe: Any,
    path: str,
    rank: int,
    world: int,
    transport: str,
    timeout: float,
    function: tuple[str, str],
    args: tuple[Any, ...],
) -> None:
    from torch.distributed import FileStore

    # Ctrl-C counts here, also where launch() has started the server that forks, and blocked it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        comm = Communicator(
            FileStore(path, world), rank, world, transport=transport, timeout=timeout
        )
        module, name = function
        value = getattr(importlib.import_module(module), name)(comm, *args)
        comm.close()
        pipe.send(("ok", value))
    except BaseException as error:
        pipe.send(("raised", type(error).__name__, f"{error}", traceback.format_exc()))
    pipe.close()
    os._exit(0)  # the forkserver's exit handlers are not this process's


def run_ranks(
    world: int,
    function: Callable[..., Any],
    *args: Any,
    transport: str = "shm",
    timeout: float = 20,
    limit: float = 60,
) -> list[Any]:
    """What `function(comm, *args)` returns on every rank. Throws RankFailed with the traceback of
    the first rank that raised."""
    outcomes = outcomes_of(
        world, function, *args, transport=transport, timeout=timeout, limit=limit
    )
    return _values(outcomes)


def _values(outcomes: list[Any]) -> list[Any]:
    """Throws RankFailed where a rank failed, rather for one that began than for one that heard."""
    failed = [(rank, outcome) for rank, outcome in enumerate(outcomes) if outcome[0] != "ok"]
    for rank, outcome in sorted(failed, key=lambda each: each[1][1:2] == ("TransportError",)):
        raise RankFailed(f"rank {rank}: {outcome[-1]}")
    return [outcome[1] for outcome in outcomes]


def outcomes_of(
    world: int,
    function: Callable[..., Any],
    *args: Any,
    transport: str = "shm",
    timeout: float = 20,
    limit: float = 60,
) -> list[Any]:
    """As Ranks.results(), for ranks of either kind."""
    if transport not in ("loopback", "null"):
        return Ranks(world, function, *args, transport=transport, timeout=timeout).results(limit)
    return thread_outcomes(world, function, *args, transport=transport, timeout=timeout)


def run_threads(
    world: int, function: Callable[..., Any], *args: Any, transport: str, timeout: float = 20
) -> list[Any]:
    """As run_ranks(), on threads over any transport, so that `function` may be a closure."""
    return _values(thread_outcomes(world, function, *args, transport=transport, timeout=timeout))


def thread_outcomes(
    world: int,
    function: Callable[..., Any],
    *args: Any,
    transport: str,
    timeout: float = 20,
    limit: float = 60,
) -> list[Any]:
    """As Ranks.results(), on threads over any transport."""
    store, name = MemoryStore(), uuid.uuid4().hex
    outcomes: list[Any] = [("hung",)] * world

    def main(rank: int) -> None:
        try:
            comm = Communicator(store, rank, world, name=name, transport=transport, timeout=timeout)
            outcomes[rank] = ("ok", function(comm, *args))
        except BaseException as error:
            outcomes[rank] = ("raised", type(error).__name__, f"{error}", traceback.format_exc())

    threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return outcomes
