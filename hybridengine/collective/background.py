"""Work that a communicator does while its caller goes on: one thread per communicator, in order."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from typing import Any

from hybridengine._core import TimeoutError as CommTimeoutError
from hybridengine._core import UsageError
from hybridengine.comm import Communicator


class Work:
    """A call under way. What it raises, wait() raises."""

    def __init__(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._function, self._args = function, args
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._then: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> None:
        """Until it is done. Throws TimeoutError after `timeout` seconds; it is then still under
        way."""
        if not self._done.wait(timeout):
            raise CommTimeoutError(
                f"a collective was not done within {timeout} s. It goes on: wait() again."
            )
        if self._error is not None:
            raise self._error

    def is_completed(self) -> bool:
        """Whether it is done, well or not."""
        return self._done.is_set()

    def get_future(self, result: Any = None) -> Any:
        """A torch Future that gets `result`, or what the call raised."""
        import torch

        future: Any = torch.futures.Future()

        def settle() -> None:
            if self._error is None:
                future.set_result(result)
            else:
                future.set_exception(self._error)

        with self._lock:
            if not self._done.is_set():
                self._then.append(settle)
                return future
        settle()
        return future

    def __repr__(self) -> str:
        state = "under way" if not self._done.is_set() else "done"
        if self._error is not None:
            state = f"failed: {type(self._error).__name__}"
        return f"Work({state})"

    def _perform(self) -> None:
        try:
            self._function(*self._args)
        except BaseException as error:
            self._error = error

    def _settle(self) -> None:
        with self._lock:
            self._done.set()
        self._args = ()
        for settle in self._then:
            settle()


class Worker:
    """The thread of one communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._last: Work | None = None
        self._busy = comm.busy
        self._thread = threading.Thread(
            target=self._main, name=f"hybridengine-{comm.name}", daemon=True
        )
        self._thread.start()

    def submit(self, function: Callable[..., None], args: tuple[Any, ...]) -> Work:
        self._last = Work(function, args)
        self._queue.put(self._last)
        return self._last

    def drain(self) -> None:
        """Until all that was submitted is done; what it raised is its own waiters' to see."""
        if self._last is not None and threading.current_thread() is not self._thread:
            self._last._done.wait()

    def stop(self) -> None:
        """Ends the thread after all that was submitted."""
        self._queue.put(None)

    def _main(self) -> None:
        while (work := self._queue.get()) is not None:
            with self._busy:
                work._perform()
            work._settle()  # whoever waits for it may make the next call at once


def _agreed(comm: Communicator, function: Callable[..., None], *args: Any) -> None:
    try:
        function(*args)
    except UsageError:
        if comm.dead:
            raise
        with comm.agreed():  # of one rank alone it would have been the end of the communicator
            raise


def run(
    comm: Communicator, function: Callable[..., None], args: tuple[Any, ...], async_op: bool
) -> Work | None:
    """Calls `function` as a call of `comm`, after all that was begun before it."""
    function = functools.partial(_agreed, comm, function)
    if async_op:
        if comm.worker is None:
            comm.worker = Worker(comm)
        submitted: Work = comm.worker.submit(function, args)
        return submitted
    if comm.worker is not None:
        comm.worker.drain()
    if not comm.busy.acquire(blocking=False):
        raise UsageError(comm.in_use())
    try:
        function(*args)
    finally:
        comm.busy.release()
    return None
