"""fork_server: the process that has imported torch once, and that ranks of run_local() are forked
from."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Any

from hybridengine._core import TransportError
from hybridengine.processes.search_path import search_path
from hybridengine.processes.socket_folder import socket_parent

context = multiprocessing.get_context("forkserver")

# multiprocessing's socket: /pymp-xxxxxxxx/listener-xxxxxxxx
_SOCKET_BYTES = 32

# A connection, two pipes, and what they are sent with.
_DESCRIPTORS_OF_A_START = 8

# Between the end of its connection and its own.
_LAST_S = 2.0


def start_fork_server(function: Callable[..., Any], environment: dict[str, str]) -> None:
    """Starts it where none runs. It imports torch and what the caller has imported of ours.

    Ctrl-C reaches the whole process group; blocked during the start, it spares the imports of the
    server, and its ranks ignore it: the caller ends them. Files of the current folder hide no
    module from it unless they do from the caller.
    """
    ours = sorted(name for name in sys.modules if name.split(".")[0] == "hybridengine")
    context.set_forkserver_preload(
        [
            "torch",
            "torch.distributed",
            "hybridengine.resharding.resharder",
            *ours,
            function.__module__,
        ]
    )
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    needed = {
        "OMP_NUM_THREADS": environment["OMP_NUM_THREADS"],  # read when torch is loaded
        "PYTHONPATH": search_path(),
        "PYTHONSAFEPATH": "1",
    }
    try:
        with _environment(needed), _temporary_files_in(socket_parent(_SOCKET_BYTES)):
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _temporary_files_in(folder: str) -> Iterator[None]:
    """multiprocessing makes its sockets where tempfile makes its files."""
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = before


def start_process(process: Any) -> None:
    """Throws TransportError where the fork server is gone; OSError, where the system refuses it."""
    _check_descriptors()
    try:
        process.start()
    except (EOFError, ConnectionError, FileNotFoundError) as error:
        raise TransportError(
            f"ranks cannot start: the process that they are forked from ended ({_server_end()}). "
            f"See what it wrote to stderr."
        ) from error


def _check_descriptors() -> None:
    """Throws OSError where too few are left for a start: found out in the middle of it, that would
    end the server with a traceback."""
    opened = []
    try:
        for _ in range(_DESCRIPTORS_OF_A_START):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _server_end() -> str:
    """How the fork server ended, as far as this process is told."""
    deadline = time.monotonic() + _LAST_S
    while (ended := _look()) is None:
        if time.monotonic() > deadline:
            return "it does not answer"
        time.sleep(0.01)
    if ended.si_code == os.CLD_EXITED:
        return f"exit code {ended.si_status}"
    return signal_name(ended.si_status)


def _look() -> os.waitid_result | None:
    """How it ended, not reaped: that is for multiprocessing. None while it runs."""
    return os.waitid(os.P_PID, _pid(), os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _pid() -> int:
    pid = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
    if pid is None:
        raise ChildProcessError("there is no fork server")
    return int(pid)


def end_fork_server() -> None:
    """Ends it now: left alone it ends with its caller, but takes a second or two to unload torch,
    and holds the caller's stdout meanwhile. The next launch starts another one."""
    try:
        # Looked at, not reaped: the number stays its own, and multiprocessing sees that it is gone.
        _look()
        os.kill(_pid(), signal.SIGKILL)
        os.waitid(os.P_PID, _pid(), os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return  # there is none, or another process started it


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
