"""keeper: the main program of the process that a local Ray is started by, and ends with.

Ray's processes are its children, in a session of their own: a signal to the controller's process
group (a terminal's Ctrl-C, timeout, a batch system) does not reach them, so that the controller
ends them in order. It reads from a pipe that the controller holds open, and nobody else: when that
ends, however the controller did, it kills all processes of its session and removes Ray's folder.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any


def keep(answer: int, folder: str, num_cpus: int | None) -> None:
    """Starts Ray with its files in `folder`. Sends {"address": ...} or {"error": ...} to the
    descriptor `answer`, and does not return while the controller lives."""
    watch = threading.Thread(target=_end_with_controller, args=(folder,))
    watch.start()
    try:
        found = {"address": _start(folder, num_cpus)}
    except Exception as error:  # whatever Ray raises: the controller says it
        found = {"error": str(error) or type(error).__name__}
    os.write(answer, json.dumps(found).encode())
    os.close(answer)
    watch.join()


def _start(folder: str, num_cpus: int | None) -> str:
    import ray

    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        _temp_dir=folder,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    return str(ray.get_runtime_context().gcs_address)


def _end_with_controller(folder: str) -> None:
    sys.stdin.buffer.read()
    # Twice: one may have started another one between the look and its end.
    while others := _session():
        for pid in others:
            _kill(pid)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _session() -> list[int]:
    """The other processes of this session that live."""
    own, found = os.getpid(), []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:  # it ended meanwhile
            continue
        pid = int(path.parent.name)
        if int(session) == own and state not in "ZX" and pid != own:
            found.append(pid)
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _main(answer: str, options: str) -> None:
    arguments: dict[str, Any] = json.loads(options)
    keep(int(answer), **arguments)


if __name__ == "__main__":
    _main(*sys.argv[1:])
