"""local_ray: a Ray of this host that lives no longer than this process, as its controller sees it;
keeper.py is the process that starts it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hybridengine._core import TransportError
from hybridengine.processes.socket_folder import socket_parent

# The longest path of Ray's sockets, and a bit:
# /he-ray.xxxxxxxx/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store
_SOCKET_BYTES = 84

# The keeper kills what is there, which takes a tenth of a second.
_END_S = 5.0

# More than its processes open for a handful of ranks.
_DESCRIPTORS = 1024

_COMMAND = (sys.executable, "-P", "-m", "hybridengine.rlhf.workers.keeper")


class LocalRay:
    """Started when made; `address` is that of its GCS."""

    def __init__(self, num_cpus: int | None, env: Mapping[str, str]) -> None:
        """Blocks until it answers. `env`: its whole environment. Throws TransportError where it
        does not start, UsageError where there is no folder for its sockets."""
        self._folder = tempfile.mkdtemp(prefix="he-ray.", dir=socket_parent(_SOCKET_BYTES))
        options = json.dumps({"folder": self._folder, "num_cpus": num_cpus})
        heard, answer = os.pipe()
        try:
            self._keeper = subprocess.Popen(
                [*_COMMAND, str(answer), options],
                stdin=subprocess.PIPE,  # closed by our end, whatever that is
                stdout=2,  # what Ray prints is a log
                pass_fds=(answer,),
                cwd="/",
                env=env,
                start_new_session=True,
            )
        except BaseException:
            os.close(heard)
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            os.close(answer)
        try:
            self.address = self._address(heard)
        except BaseException:
            self.end()
            raise

    def _address(self, heard: int) -> str:
        with os.fdopen(heard, "rb") as file:
            text = file.read()
        found = json.loads(text) if text else {"error": "its process ended without a word"}
        if "address" not in found:
            why = " ".join(found["error"].split()).rstrip(".")
            raise TransportError(f"Ray did not start: {why}. {_mend()}")
        return str(found["address"])

    def end(self) -> None:
        """Ends all of its processes and removes its folder. May be called again."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(_END_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._keeper.pid, signal.SIGKILL)
            self._keeper.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _mend() -> str:
    """Ray does not say which of its processes lacked descriptors, of which it takes what it may."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= limit < _DESCRIPTORS:
        return f"`ulimit -n` is {limit}, which may be too few: raise it to {_DESCRIPTORS}."
    return "See what it wrote to stderr."


def token_environment() -> dict[str, str]:
    """What makes a local Ray and this process know each other by a token.

    Ray reads it from its file in the home directory. Where there is none, it is a new secret, so
    that nothing needs to be written there, and no home is needed.
    """
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return {}
    if any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return {"RAY_AUTH_MODE": "token"}
    if _token_file_has_one():
        return {"RAY_AUTH_MODE": "token"}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _token_file_has_one() -> bool:
    home = os.environ.get("HOME")  # as Ray's core looks for it
    if not home:
        return False
    try:
        return bool((Path(home) / ".ray" / "auth_token").read_text().strip())
    except OSError:
        return False
