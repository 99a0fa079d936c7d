"""process: one child process that scores, as its parent sees it. Which items it gets, and what is
made of its end, is decided in processes.py."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from hybridengine.processes.search_path import search_path
from hybridengine.rlhf.config.schema import Reward
from hybridengine.rlhf.rewards.frames import Frames
from hybridengine.rlhf.rewards.scoring import Item

# Far above what a start takes on a machine that is overloaded.
START_S = 120.0

_COMMAND = (sys.executable, "-P", "-m", "hybridengine.rlhf.rewards.worker")


class RewardProcess:
    """A process with a session of its own, in which everything that it starts ends with it.

    A plain interpreter rather than a fork or a spawn: it has nothing of the parent, whose torch,
    Ray and main module it must not load. `timeout_s` holds for each item.
    """

    def __init__(self, config: Reward) -> None:
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        try:
            self._popen = subprocess.Popen(
                [*_COMMAND, str(theirs.fileno()), str(lifeline)],
                pass_fds=(theirs.fileno(), lifeline),
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a reward prints is a log
                env=_environment(),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        ours.settimeout(START_S)
        self.frames = Frames(ours)
        self.ready = False
        self.items: deque[int] = deque()  # what it has yet to score; it is at the first
        self.deadline: float | None = time.monotonic() + START_S
        self._timeout_s = config.timeout_s
        self._send(config)

    def give(self, indices: Sequence[int], items: Sequence[Item]) -> None:
        """Hands it items to score, of which it has none now."""
        self.items.extend(indices)
        self.deadline = time.monotonic() + self._timeout_s
        self._send([items[index] for index in indices])

    def answered(self) -> int:
        """The index of the item whose score has come; the next one's time begins."""
        index = self.items.popleft()
        self.deadline = time.monotonic() + self._timeout_s if self.items else None
        return index

    def started(self) -> None:
        self.ready, self.deadline = True, None

    def end(self) -> str:
        """Kills it and all that it started; says how it ended. May be called again."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()
            self.frames.close()
            os.close(self._lifeline)
        code = self._popen.returncode
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def _send(self, value: Any) -> None:
        """A process that is gone shows when it is read from, or when its time is up."""
        with contextlib.suppress(OSError):
            self.frames.send(value)


def _environment() -> dict[str, str]:
    """Imports as here; no threads that spin beside the ranks."""
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": search_path()}
