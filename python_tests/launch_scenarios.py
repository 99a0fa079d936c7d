"""What ranks do in test_launch.py. They must be importable by the ranks."""

import os
import signal
import sys
import time

from hybridengine import TransportError, UsageError
from hybridengine.launch import run_local, tell


def add_ranks(comm, base):
    with comm.call():
        gathered = comm.all_gather(str(base + comm.rank).encode())
    return [int(each) for each in gathered]


def show_environment(comm, name):
    return os.environ.get(name)


def show_command_line(comm):
    with open(f"/proc/{os.getpid()}/cmdline") as file:
        return file.read()


def tell_twice(comm):
    tell(("rank", comm.rank))
    tell({"odd": [1.5, None]})


def large_result(comm):
    return bytes(3_000_001) if comm.rank == 1 else b""


def raise_on_one(comm, kind):
    if comm.rank == 1:
        if kind == "unpicklable":
            raise Unpicklable(open(os.devnull))  # noqa: SIM115
        raise {"usage": UsageError, "value": ValueError, "transport": TransportError}[kind](
            "my words"
        )
    with comm.call():
        comm.all_gather(b"")


class Unpicklable(Exception):
    pass


def kill_one(comm, rank):
    if comm.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    with comm.call():
        comm.all_gather(b"")


def leave_early(comm):
    if comm.rank == 0:
        os._exit(7)
    time.sleep(60)


def sleep_forever(comm, folder):
    (folder / str(os.getpid())).touch()
    time.sleep(600)


def call_and_sleep(folder):
    """The caller that test_launch.py kills."""
    run_local(3, sleep_forever, folder)


if __name__ == "__main__":
    from pathlib import Path

    call_and_sleep(Path(sys.argv[1]))
