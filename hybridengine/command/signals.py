"""signals: how a command answers the signals that end it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

# A main thread that is inside of a call, which cannot be interrupted, is not waited for longer.
_ANSWER_S = 1.5
# What clearing away may take. Ranks that are left by then end with their caller.
_CLEAR_S = 12.0


class _End:
    """The end of this process by a signal. `number` is 0 until one came."""

    def __init__(self) -> None:
        self.number = 0
        self.answered = threading.Event()

    def begin(self, number: int, _: Any) -> None:
        """The handler. Only the first signal unwinds: timeout, a shell and a batch system send
        several, and what clears away must not be interrupted."""
        if self.number:
            return
        self.number = number
        self.answered.set()
        raise KeyboardInterrupt

    def enforce(self, wakeup: int) -> None:
        """On a thread: reads the numbers of signals from `wakeup` and ends the process where the
        main thread does not."""
        for number in iter(lambda: os.read(wakeup, 1), b""):
            if number[0] not in ENDING:
                continue
            if self.answered.wait(_ANSWER_S):
                threading.Event().wait(_CLEAR_S)
            os._exit(128 + number[0])
        os.close(wakeup)


def ended_by() -> int:
    """The signal that ends this process, where unwind_on_signals() answered one; else 0."""
    return _end.number


@contextmanager
def unwind_on_signals() -> Iterator[None]:
    """For the main thread of a command: inside, the first of the signals that end a process raises
    KeyboardInterrupt, so that ranks and folders are cleared away; further ones are ignored. Where
    that is not possible or takes too long, the process ends anyway, with 128 + the number.

    A signal that is ignored, as nohup does, stays so. Nothing is undone once a signal came: the
    process is to end.
    """
    global _end
    _end = _End()
    before = {number: signal.getsignal(number) for number in ENDING}
    answered = [number for number in ENDING if before[number] is not signal.SIG_IGN]
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    wakeup = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    threading.Thread(target=_end.enforce, args=(readable,), daemon=True).start()
    for number in answered:
        signal.signal(number, _end.begin)
    try:
        yield
    finally:
        if not _end.number:
            for number in answered:
                signal.signal(number, before[number])
            signal.set_wakeup_fd(wakeup)
            os.close(writable)


_end = _End()
