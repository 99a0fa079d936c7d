"""launch: a function on N processes of this host, each of them a rank with a Communicator.

For demos, tests and notebooks; on a cluster the ranks come from torchrun, Ray or Slurm. Ranks start
from a fork server that has imported torch once, so each of them starts in some 50 ms. They live no
longer than their caller: a rank ends when the caller dies, and all end when one of them fails.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import secrets
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from hybridengine._core import TimeoutError as CommTimeoutError
from hybridengine._core import TransportError, UsageError
from hybridengine.comm import Communicator
from hybridengine.options import callable_, seconds, text, whole
from hybridengine.processes.fork_server import (
    context,
    end_fork_server,
    signal_name,
    start_fork_server,
    start_process,
)

# After the first failure the others' words are heard for this long: the rank that died or raised
# by itself is the one to name, not those that lost it.
_LAST_WORDS_SECONDS = 0.5

Event = Callable[[int, Any], None]


class RankDied(TransportError):
    """A rank ended without a result. `rank`, and `signal` (a number) where one ended it."""

    def __init__(self, rank: int, exitcode: int) -> None:
        self.rank = rank
        self.signal = -exitcode if exitcode < 0 else None
        how = f"exit code {exitcode}" if self.signal is None else signal_name(self.signal)
        super().__init__(f"rank {rank} died: {how}. See what it wrote to stderr.")


class RankFailed(RuntimeError):
    """A rank raised what cannot be sent to the caller; this quotes it."""


def run_local(
    world: int,
    function: Callable[..., Any],
    *args: Any,
    token: str | None = None,
    transport: str | None = None,
    timeout: float | None = None,
    on_event: Event | None = None,
) -> list[Any]:
    """Runs `function(comm, *args)` on `world` new processes and returns the results by rank.

    The function must be importable, as in multiprocessing, and arguments and results picklable. A
    script must guard its own start with `if __name__ == "__main__":`. Ranks have the caller's
    environment, with OMP_NUM_THREADS=1 unless it is set, and HYBRIDENGINE_TOKEN, a new secret
    unless `token` is given; it never appears in an argument list or in the store. `transport` and
    `timeout` are those of Communicator. `on_event(rank, event)` gets what ranks tell().

    Blocks. Where a rank raises, all are ended and its exception is raised here, with its traceback
    as a note; RankDied where one died. On KeyboardInterrupt all are ended at once.
    """
    if whole("world", world, "ranks") < 1:
        raise UsageError(f"world is {world}. Use a whole number of ranks from 1.")
    function = callable_("function", function)
    on_event = None if on_event is None else callable_("on_event", on_event)
    timeout = seconds("timeout", timeout)
    token = None if token is None else text("token", token)
    _check_picklable(function, args)
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment["HYBRIDENGINE_TOKEN"] = secrets.token_hex(16) if token is None else token
    start_fork_server(function, environment)
    with tempfile.TemporaryDirectory(prefix="hybridengine.") as folder:
        start = (str(Path(folder) / "store"), world, environment, transport, timeout)
        try:
            return _Launch(world, on_event).run(start, function, args)
        except (KeyboardInterrupt, SystemExit):
            end_fork_server()
            raise


def tell(event: Any) -> None:
    """On a rank of run_local(): hands `event` (picklable) to the caller's on_event. Elsewhere it
    does nothing."""
    if _to_caller is not None:
        _to_caller.send(("event", event))


class _Launch:
    """The caller's end: one process and one pipe per rank."""

    def __init__(self, world: int, on_event: Event | None) -> None:
        self._world, self._on_event = world, on_event
        self._processes: list[Any] = []
        self._pipes: dict[Any, int] = {}  # open ones
        self._results: dict[int, Any] = {}
        self._failures: list[tuple[int, BaseException]] = []

    def run(self, start: tuple[Any, ...], function: Callable[..., Any], args: Any) -> list[Any]:
        try:
            self._start(start, function, args)
            return self._collect()
        finally:
            self._end()

    def _start(self, start: tuple[Any, ...], function: Callable[..., Any], args: Any) -> None:
        for rank in range(self._world):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank_main, args=(theirs, rank, start, function, args), name=f"rank {rank}"
            )
            self._processes.append(process)
            start_process(process)
            theirs.close()
            self._pipes[ours] = rank

    def _collect(self) -> list[Any]:
        deadline = None
        while self._pipes:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            for pipe in wait(list(self._pipes), left):
                self._receive(pipe)
            if self._failures and deadline is None:
                deadline = time.monotonic() + _LAST_WORDS_SECONDS
            if deadline is not None and time.monotonic() >= deadline:
                break
        if self._failures:
            raise min(self._failures, key=lambda failure: _remoteness(failure[1]))[1]
        for process in self._processes:
            process.join()
        return [self._results[rank] for rank in range(self._world)]

    def _receive(self, pipe: Any) -> None:
        rank = self._pipes[pipe]
        try:
            kind, value = pipe.recv()
        except EOFError:
            del self._pipes[pipe]
            pipe.close()
            if rank not in self._results:
                self._failures.append((rank, self._death(rank)))
            return
        if kind == "event":
            if self._on_event is not None:
                self._on_event(rank, value)
        elif kind == "result":
            self._results[rank] = value
        else:
            self._results[rank] = None
            self._failures.append((rank, _received_error(rank, *value)))

    def _death(self, rank: int) -> RankDied:
        process = self._processes[rank]
        process.join()
        return RankDied(rank, process.exitcode)

    def _end(self) -> None:
        """Ends what still runs. Nobody is asked: ranks leave nothing behind when killed."""
        started = [process for process in self._processes if process.pid is not None]
        for process in started:
            if process.is_alive():
                process.kill()
        for process in started:
            process.join()
        for pipe in self._pipes:
            pipe.close()


def _rank_main(
    pipe: Connection,
    rank: int,
    start: tuple[Any, ...],
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    global _to_caller
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_caller, daemon=True).start()
    store, world, environment, transport, timeout = start
    os.environ.clear()
    os.environ.update(environment)
    _to_caller = pipe
    try:
        comm = _join(store, rank, world, transport, timeout)
        value = function(comm, *args)
        comm.close()
        message = pickle.dumps(("result", value))
    except BaseException as error:
        message = _error_message(error)
    pipe.send_bytes(message)


def _join(
    path: str, rank: int, world: int, transport: str | None, timeout: float | None
) -> Communicator:
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    store = FileStore(path, world)
    return Communicator(store, rank, world, transport=transport, timeout=timeout)


def _end_with_caller() -> None:
    """Waits for the end of the process that called run_local(), then ends this one."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _error_message(error: BaseException) -> bytes:
    """The exception itself where it survives the way, and its texts."""
    text, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # whatever its own pickling raises: the texts remain
        pickled = b""
    return pickle.dumps(("raised", (pickled, text, trace)))


def _received_error(rank: int, pickled: bytes, text: str, trace: str) -> BaseException:
    error: BaseException = (
        pickle.loads(pickled) if pickled else RankFailed(f"rank {rank} raised {text}")
    )
    error.add_note(f"on rank {rank}:\n{trace}")
    return error


def _remoteness(error: BaseException) -> int:
    """How far an error is from the first cause."""
    if isinstance(error, RankDied):
        return 0
    return 2 if isinstance(error, (TransportError, CommTimeoutError)) else 1


def _check_picklable(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        pickle.dumps((function, args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"ranks cannot be given {getattr(function, '__qualname__', function)!r} and its "
            f"arguments: {error}. Use a function at the top level of a module, and plain arguments."
        ) from error


_to_caller: Connection | None = None
