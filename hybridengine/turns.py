"""turns: calls of one communicator, one at a time and in the order in which they were begun: at
once, or as work of a thread while the caller goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from hybridengine._core import TimeoutError as CommTimeoutError
from hybridengine._core import UsageError


class Work:
    """A call under way. What it raises, wait() raises."""

    def __init__(self, turns: Turns, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._turns, self._function, self._args = turns, function, args
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._then: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> None:
        """Until it is done. Throws TimeoutError after `timeout` seconds; it is then still under
        way. Throws UsageError within a call of this thread, whose end it is waiting for itself."""
        if not self._done.is_set():
            self._turns.check_outside()
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


class Turns:
    """Whose turn it is: `with turns:` is a call. `owner` is the communicator as errors name it; the
    object itself would be kept alive."""

    def __init__(self, name: str, owner: str) -> None:
        self._name, self._owner = name, owner
        self._busy = threading.Lock()  # held in a call
        self._caller: int | None = None  # the thread that makes it
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Work | None = None

    def __enter__(self) -> None:
        """Begins a call, after all that was begun before it. Throws UsageError amid another one."""
        self.check_outside()
        self._drain()
        if not self._busy.acquire(blocking=False):
            raise UsageError(self._in_use())
        self._caller = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._caller = None
        self._busy.release()

    def check_outside(self) -> None:
        """Throws UsageError where this thread is in a call: what it waits for would never end."""
        if self._caller == threading.get_ident():
            raise UsageError(self._in_use())

    def _in_use(self) -> str:
        return (
            f"{self._owner} is in a call already. Use it from one thread, one call after the "
            "other; for two at once make two communicators."
        )

    def later(self, function: Callable[..., None], args: tuple[Any, ...]) -> Work:
        """A call of a thread, after all that was begun before it."""
        if self._thread is None:
            name = f"hybridengine-{self._name}"
            self._thread = threading.Thread(target=self._main, name=name, daemon=True)
            self._thread.start()
        self._last = Work(self, function, args)
        self._queue.put(self._last)
        return self._last

    def take(self, seconds: float) -> bool:
        """Takes the turn for good once the call under way ends; False where it lasts longer."""
        return self._busy.acquire(timeout=seconds)

    def stop(self) -> None:
        """Ends the thread after all that was begun."""
        if self._thread is not None:
            self._queue.put(None)

    def _drain(self) -> None:
        """Until all that was begun is done; what it raised is its own waiters' to see."""
        if self._last is not None and threading.current_thread() is not self._thread:
            self._last._done.wait()

    def _main(self) -> None:
        while (work := self._queue.get()) is not None:
            with self._busy:
                work._perform()
            work._settle()  # whoever waits for it may make the next call at once
