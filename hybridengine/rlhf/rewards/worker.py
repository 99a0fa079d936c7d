"""worker: the main program of a process that computes rewards, as processes.py starts it.

It gets the config, answers None or the text of a UsageError, and then for each list of items sends
their scores one by one, so that the parent knows which item is being scored.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys

from hybridengine._core import UsageError
from hybridengine.command.streams import open_streams
from hybridengine.rlhf.rewards.frames import Frames
from hybridengine.rlhf.rewards.scoring import Scorer


def serve(frames: Frames) -> None:
    """Returns when the parent closes its end."""
    try:
        scorer = Scorer.from_config(frames.receive())
        scorer.load_libraries()  # none of a sample's time is for that
    except UsageError as error:
        frames.send(str(error))
        return
    frames.send(None)
    while True:
        try:
            items = frames.receive()
        except EOFError:
            return
        for item in items:
            frames.send(scorer.score_one(item))


def die_with_parent(lifeline: int) -> None:
    """Lets the system kill this process group once the write end of the pipe `lifeline` is closed,
    which the parent's death does too, whatever a reward is doing then."""
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    if poll.poll(0):  # it was closed before there was a signal to be had
        os._exit(1)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    open_streams()  # what a reward prints is a log, whatever characters the surroundings know
    serve(Frames(socket.socket(fileno=int(sys.argv[1]))))
