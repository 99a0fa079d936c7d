"""Whole runs of the trainer in a process of their own, on one rank without Ray, and their deaths.

What Ray's ranks do is tested in test_rlhf_train*.py; here a run takes a second, so that it can be
killed where it hurts. A host process imports everything once, and forks a process for each run.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest.mock
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

# Where a run is killed: behind what this function did.
IN_A_STEP = "hybridengine.rlhf.training.fsdp2.Fsdp2.update"
IN_A_SAVE = "torch.distributed.checkpoint.state_dict_saver.save"  # files are written, not named
IN_AN_EXPORT = "hybridengine.rlhf.training.export.write_checkpoint"  # the same


class RunHost:
    """Starts runs, one at a time. A context manager."""

    def __enter__(self) -> "RunHost":
        self._host = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._host.kill()
        self._host.communicate()

    def run(
        self, arguments: Sequence[str], killed: str = "", at_call: int = 0
    ) -> tuple[int, list[str]]:
        """train() on these arguments: its exit code, or the number of its signal below 0, and the
        lines that it wrote. `killed`: the function behind whose call number `at_call`, from 1, the
        process kills itself."""
        assert self._host.stdin is not None and self._host.stdout is not None
        with tempfile.NamedTemporaryFile() as out:
            order = {"arguments": [*arguments], "killed": killed, "at_call": at_call}
            self._host.stdin.write(json.dumps({**order, "out": out.name}) + "\n")
            self._host.stdin.flush()
            code = int(self._host.stdout.readline())
            return code, out.read().decode().splitlines()


# What every run would import.
_NEEDED = (
    "hybridengine.rlhf.trainer.run",
    "hybridengine.rlhf.roles.policy",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "peft",
    "reasoning_gym",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2.modeling_qwen2",
)


def _host() -> None:
    for name in _NEEDED:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(**json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, flush=True)


def _run(arguments: list[str], killed: str, at_call: int, out: str) -> None:
    """Ends the process."""
    from hybridengine.command import cli

    file = os.open(out, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["hybridengine", "train", *arguments]
    code: Any = 1
    try:
        with _local_roles(), _killed_behind(killed, at_call):
            cli.main()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    os._exit(code)


class _Nowhere(contextlib.nullcontext[None]):
    """A cluster that has nothing."""

    def available(self) -> dict[str, float]:
        return {}


@contextlib.contextmanager
def _local_roles() -> Iterator[None]:
    """Inside, all roles of a run are in this process."""
    import rlhf_local_roles

    from hybridengine.rlhf.trainer import run

    with tempfile.TemporaryDirectory() as folder, rlhf_local_roles.one_rank(Path(folder)) as rank:
        cluster = SimpleNamespace(start=lambda config: _Nowhere())
        with (
            unittest.mock.patch.object(run, "Cluster", cluster),
            unittest.mock.patch.object(
                run, "start_roles", lambda _, config: rlhf_local_roles.local_roles(rank, config)
            ),
        ):
            yield


def _killed_behind(name: str, at_call: int) -> Any:
    if not name:
        return contextlib.nullcontext()
    owner, _, attribute = name.rpartition(".")
    done, calls = getattr(_found(owner), attribute), []

    def lethal(*args: Any, **kwargs: Any) -> Any:
        result = done(*args, **kwargs)
        calls.append(name)
        if len(calls) == at_call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return unittest.mock.patch(name, lethal)


def _found(name: str) -> Any:
    """A module, or a class in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


if __name__ == "__main__":
    _host()
