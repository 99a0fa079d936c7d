"""cluster: the Ray that ranks run on, started here or found at an address.

It knows the pools that run on it: when a rank of one fails, all of all are ended.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import ray

from hybridengine._core import UsageError
from hybridengine.rlhf.config import schema
from hybridengine.rlhf.search_path import search_path
from hybridengine.rlhf.workers import placement, transfer
from hybridengine.rlhf.workers.reference import Reference

if TYPE_CHECKING:
    from hybridengine.rlhf.workers.pool import Pool

_CONNECT_S = 5.0

# For Ray and all that it starts, unless set. Nothing is reported; GPUs stay visible to ranks that
# ask for none; ranks are the machine's main work and no background.
_ENV = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}


class Cluster:
    """Made by start(). A context manager: leaving it ends what was started."""

    def __init__(self, config: schema.Cluster, *, ours: bool, folder: str | None) -> None:
        self.config = config
        self.pools: list[Pool] = []
        # By which ranks of all pools know each other; it travels in the arguments of actors.
        self.token = secrets.token_hex(16)
        self.local = folder is not None
        self._ours, self._folder = ours, folder
        self._open = True
        self._sigterm = _exit_on_sigterm()
        atexit.register(self.close)
        transfer.register()

    @staticmethod
    def start(config: schema.Cluster, num_cpus: int | None = None) -> Cluster:
        """A local Ray (config.address is None), or one that runs already.

        `num_cpus`: how many CPUs a local one hands out; None: those of the machine. Where this
        process uses Ray already, that one is taken, and outlives close(). Blocks for some 3 s.
        Throws UsageError where no cluster answers at the address.
        """
        if ray.is_initialized():
            _check_same(config.address)
            return Cluster(config, ours=False, folder=None)
        if config.address is not None:
            _connect(config.address)
            return Cluster(config, ours=True, folder=None)
        # A folder of its own, so that close() can remove all of it.
        folder = tempfile.mkdtemp(prefix="he-ray.")
        try:
            _init(address="local", num_cpus=num_cpus, include_dashboard=False, _temp_dir=folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return Cluster(config, ours=True, folder=folder)

    def available(self) -> dict[str, float]:
        """Free `CPU` and `GPU`. Ray's count is behind by up to a second."""
        return placement.available()

    def put(self, value: Any, summary: Any = None) -> Reference:
        """`value` in the object store, once for all ranks that it will be passed to."""
        return Reference(ray.put(value), summary)

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
            if self._sigterm is not None:
                signal.signal(signal.SIGTERM, self._sigterm)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _exit_on_sigterm() -> Any:
    """Makes SIGTERM an exit in good order; returns the handler from before, None off the main
    thread, where there is none to be set."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


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
        _init(address=address)
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
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> UsageError:
    why = str(error).strip().split("\n")[0].rstrip(".")
    return UsageError(
        f"cluster.address={address!r}: no Ray cluster answers ({why}). Start one with "
        f"`ray start --head`, or leave the address out for a new local one."
    )


def _init(**options: Any) -> None:
    for name, value in _ENV.items():
        os.environ.setdefault(name, value)
    with _ranks_import_alike() as path:
        if options["address"] != "local":
            options["runtime_env"] = {"env_vars": {"PYTHONPATH": path}}
        ray.init(logging_level=logging.ERROR, log_to_driver=True, **options)


@contextmanager
def _ranks_import_alike() -> Iterator[str]:
    """Inside, Ray is started such that ranks find the same modules as this process; its search
    path. A Ray that is started inherits it.

    Ray puts the folder that it was started in before all others, where a source folder would hide
    the package that is installed: it is started in the root. Ranks go to this folder by themselves.
    """
    folder, before = Path.cwd(), os.environ.get("PYTHONPATH")
    path = search_path()
    os.environ["PYTHONPATH"] = path
    os.chdir(folder.anchor)
    try:
        yield path
    finally:
        os.chdir(folder)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
