"""cluster: the Ray that ranks run on, started here or found at an address.

It knows the pools that run on it: when a rank of one fails, all of all are ended.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import ray

from hybridengine._core import UsageError
from hybridengine.processes.search_path import search_path
from hybridengine.rlhf.config import schema
from hybridengine.rlhf.workers import reservation, wire
from hybridengine.rlhf.workers.local_ray import LocalRay, token_environment
from hybridengine.rlhf.workers.members import Members
from hybridengine.rlhf.workers.reference import Reference, cut_rows

_CONNECT_S = 5.0

# What a client of HTTP/2 says first (RFC 9113, 3.4): the preface, and an empty frame of settings.
# A frame's head is its length (3 bytes), type, flags and stream (4 bytes).
_HTTP2_SETTINGS = b"\x04"
_HTTP2_HEAD_BYTES = 9
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _HTTP2_SETTINGS + bytes(5)

# For Ray and all that it starts, unless set. Nothing is reported; GPUs stay visible to ranks that
# ask for none; ranks are the machine's main work and no background.
_ENV = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}


class Cluster:
    """Made by start(). A context manager: leaving it ends what was started."""

    def __init__(self, config: schema.Cluster, *, ours: bool, local: LocalRay | None) -> None:
        self.config = config
        self.pools: list[Members] = []
        # By which ranks of all pools know each other; it travels in the arguments of actors.
        self.token = secrets.token_hex(16)
        self.local = local is not None
        self._ours, self._ray = ours, local
        self._open = True
        self._exits_on_sigterm = _exit_on_sigterm()
        atexit.register(self.close)
        wire.register()

    @staticmethod
    def start(config: schema.Cluster, num_cpus: int | None = None) -> Cluster:
        """A local Ray (config.address is None), or one that runs already.

        `num_cpus`: how many CPUs a local one hands out; None: those of the machine. Where this
        process uses Ray already, that one is taken, and outlives close(). Blocks for some 4 s.
        Throws UsageError where no cluster answers at the address, TransportError where a local one
        does not start.
        """
        if ray.is_initialized():
            _check_same(config.address)
            return Cluster(config, ours=False, local=None)
        if config.address is not None:
            _connect(config.address)
            return Cluster(config, ours=True, local=None)
        return Cluster(config, ours=True, local=_start_local(num_cpus))

    def available(self) -> dict[str, float]:
        """Free `CPU` and `GPU`. Ray's count is behind by up to a second."""
        return reservation.available()

    def put(self, value: Any, summary: Any = None) -> Reference:
        """`value` in the object store, once for all ranks that it will be passed to."""
        return Reference(ray.put(value), summary)

    def cut(self, piece: Reference, parts: list[list[int]]) -> list[Reference]:
        """The rows `parts[i]` of the batch behind `piece`, each in the store of the rank that has
        it. Returns at once."""
        if piece.rank < 0:
            batch = ray.get(piece.ref)
            return [self.put(part) for part in cut_rows(batch, parts)]
        pool = next(pool for pool in self.pools if pool.name == piece.pool)
        refs = pool.cut(piece, parts)
        return [Reference(ref, None, piece.rank, piece.pool) for ref in refs]

    def check(self) -> None:
        """Throws UsageError once it is closed."""
        if not self._open:
            raise UsageError("the cluster is closed. Start another one.")

    def fail(self, error: Exception) -> NoReturn:
        """Ends all pools and raises `error`; every later call on them raises it too. New pools can
        be made."""
        for pool in list(self.pools):
            pool.close(error)
        raise error

    def stop_pools(self) -> None:
        """Kills all ranks of all pools and gives back their places."""
        for pool in list(self.pools):
            pool.close()

    def close(self) -> None:
        """Ends the pools, then what start() started. Nothing is left behind."""
        if not self._open:
            return
        self._open = False
        atexit.unregister(self.close)
        try:
            self.stop_pools()
        finally:
            if self._ours:
                ray.shutdown()
            if self._ray is not None:
                self._ray.end()
            if self._exits_on_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _exit_on_sigterm() -> bool:
    """Makes SIGTERM an exit in good order, unless this process answers it already. Whether it did:
    only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return False
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    return True


def _check_same(address: str | None) -> None:
    """Throws UsageError unless it is that of the Ray that this process uses."""
    used = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", used):
        raise UsageError(
            f"cluster.address={address!r}: this process uses another Ray already, at {used}. Leave "
            f"the address out, or call ray.shutdown() first."
        )


def _connect(address: str) -> None:
    if address != "auto":
        _check_listens(address)
    try:
        _init(address, runtime_env={"env_vars": {"PYTHONPATH": search_path()}})
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_cluster(address, error) from error


def _check_listens(address: str) -> None:
    """Throws UsageError unless something listens there: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(
            f"cluster.address={address!r} is no address. Use host:port as `ray start --head` "
            f"shows it, auto for the cluster of this host, or null for a new local one."
        )
    try:
        with socket.create_connection((host, int(port)), _CONNECT_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                _check_http2(connection)
    except OSError as error:
        raise _no_cluster(address, error) from error


def _check_http2(connection: socket.socket) -> None:
    """Throws OSError unless the other side greets as a server of HTTP/2 does, over which Ray
    speaks: by a frame of settings, in answer to ours."""
    connection.sendall(_HTTP2_GREETING)
    head = b""
    while len(head) < _HTTP2_HEAD_BYTES:
        got = connection.recv(_HTTP2_HEAD_BYTES - len(head))
        if not got:
            break
        head += got
    if head[3:4] != _HTTP2_SETTINGS:
        raise OSError("another program listens there")


def _no_cluster(address: str, error: Exception) -> UsageError:
    why = str(error).strip().split("\n")[0].rstrip(".")
    return UsageError(
        f"cluster.address={address!r}: no Ray cluster answers ({why}). Start one with "
        f"`ray start --head`, or leave the address out for a new local one."
    )


def _start_local(num_cpus: int | None) -> LocalRay:
    os.environ.update(token_environment())
    # Ray has read its environment when it was imported.
    ray._raylet.Config.initialize("")  # type: ignore[attr-defined]
    local = LocalRay(num_cpus, {**_ENV, **os.environ, "PYTHONPATH": search_path()})
    try:
        _init(local.address)
    except BaseException:
        local.end()
        raise
    return local


def _init(address: str, **options: Any) -> None:
    """ray.init(), which would take the answer to SIGTERM for itself."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", _ENV["RAY_USAGE_STATS_ENABLED"])
    with _in_root(), _sigterm_stays():
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=True, **options)


@contextmanager
def _sigterm_stays() -> Iterator[None]:
    """Its handler is as before afterwards, and answers one that Ray's has answered inside."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:
        signal.signal(signal.SIGTERM, before)
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _in_root() -> Iterator[None]:
    """Inside, the current folder is the root.

    Ray puts the folder that it is used in before all others on its ranks, where a source folder
    would hide the package that is installed. Ranks go to this folder by themselves.
    """
    folder = os.open(".", os.O_PATH)  # it may be gone, or unreadable
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(folder)
        os.close(folder)
