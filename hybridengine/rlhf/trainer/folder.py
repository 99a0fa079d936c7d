"""folder: the folder of a run, which belongs to one run at a time.

A run *claims* its folder before it reads anything. The folder *stands* once ranks and roles have
started: only then does an earlier run of the same name move aside. A start that fails before leaves
the earlier run where it was, and nothing new.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hybridengine._core import UsageError
from hybridengine.command import farewell
from hybridengine.rlhf.config.loading import save_config
from hybridengine.rlhf.config.presets import NONE
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.trainer.failure import disk_errors
from hybridengine.rlhf.trainer.lock import LOCK, FolderLock
from hybridengine.rlhf.trainer.resume import check_resumable, how_to_go_on
from hybridengine.rlhf.training.state import line_of

# What the names begin with of that which a start writes to try whether it can.
TRIAL = ".trial."


class RunFolder:
    """Made by claim(). A context manager: leaving it lets the folder go."""

    def __init__(self, path: Path, scratch: Path, lock: FolderLock, undo: ExitStack) -> None:
        """`scratch`: the folder in which a trial may write, as it will be possible in `path`."""
        self.path, self.scratch = path, scratch
        self._lock, self._undo = lock, undo

    @staticmethod
    def claim(config: Config) -> RunFolder:
        """`<run.dir>/<run.name>`, or without a name one by preset and time that nobody else has.

        Throws UsageError where the folder cannot be written, where a live run has it, where it
        holds something else than a run, and where it is to be resumed and holds no checkpoint.
        """
        with _in_words(config), ExitStack() as undo:
            parent = Path(config.run.dir)
            if config.run.resume:
                assert config.run.name is not None, "the config was checked"
                check_resumable(parent / config.run.name)
            _make(parent, undo)
            path, lock, made = _locked(config, parent)
            undo.callback(lock.release)
            if made:
                undo.callback(shutil.rmtree, path, ignore_errors=True)
            elif not config.run.resume and not (path / "config.yaml").exists() and _is_used(path):
                raise UsageError(
                    f"{path} is not empty and holds no run. Name another folder with run.name."
                )
            scratch = path if made or config.run.resume else parent
            _check_writable(scratch)
            return RunFolder(path, scratch, lock, undo.pop_all())

    def named(self, config: Config) -> Config:
        """The config with the name of this folder."""
        run = config.run.model_copy(update={"name": self.path.name})
        return config.model_copy(update={"run": run})

    @contextmanager
    def standing(self, config: Config, command: Sequence[str]) -> Iterator[None]:
        """Inside, the run has begun. An earlier one of the name is kept under a number first, which
        is said on stderr; from here on the folder stays. However the run is ended before its own
        end, the command says behind its error how to go on; `command` is what was typed for it.

        Throws UsageError where nothing can be moved, RunError where nothing can be written.
        """
        if not config.run.resume and _is_used(self.path):
            with _in_words(config):
                self._set_aside()
        self._undo.pop_all()
        try:
            with disk_errors(self.path):
                save_config(config, self.path / "config.yaml")
                yield
        except BaseException as error:
            words = how_to_go_on(config, self.path, command, error)
            if words:
                farewell.leave(words)
            raise

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()  # which lets the lock go too, where the folder does not stand
        self._lock.release()

    def _set_aside(self) -> None:
        """The new folder is locked before it gets its name, and the earlier until it has another,
        so that nobody takes either."""
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        kept = _numbered(self.path)
        fresh.mkdir()
        lock = FolderLock(fresh)
        try:
            self.path.rename(kept)
            fresh.rename(self.path)
        except BaseException:
            lock.release()
            shutil.rmtree(fresh, ignore_errors=True)
            if not self.path.exists():
                kept.rename(self.path)
            raise
        self._lock.release()
        self._lock = lock
        sys.stderr.write(f"hybridengine: the earlier run {self.path} was moved to {kept}\n")


def _locked(config: Config, parent: Path) -> tuple[Path, FolderLock, bool]:
    """The folder, its lock, and whether the folder was made for it."""
    for path in _names(config, parent):
        try:
            path.mkdir()
            made = True
        except FileExistsError:
            made = False
        if made or config.run.name is not None:
            try:
                return path, FolderLock(path), made
            except FileNotFoundError:  # another start has just given it up
                continue
            except OSError:  # a full disk
                if made:
                    shutil.rmtree(path, ignore_errors=True)
                raise
    raise AssertionError("names do not end")


def _names(config: Config, parent: Path) -> Iterator[Path]:
    """The folders to try, one after the other."""
    kind = "run" if config.preset == NONE else config.preset
    name = config.run.name or f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    yield parent / name
    number = 2
    while True:
        yield parent / (name if config.run.name is not None else f"{name}-{number}")
        number += 1


def _make(folder: Path, undo: ExitStack) -> None:
    """With what is above it; `undo` removes again what was made, where nothing else came in."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        undo.callback(_remove_empty, each)


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _is_used(path: Path) -> bool:
    """Whether it holds more than a start leaves that was killed."""
    names = (each.name for each in path.iterdir())
    return any(name != LOCK and not name.startswith(TRIAL) for name in names)


def _numbered(path: Path) -> Path:
    """The first of `<path>.1`, `<path>.2`, ... that is not there."""
    number = 1
    while (found := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return found


def _check_writable(folder: Path) -> None:
    """Throws OSError where nothing can be written there."""
    trial = folder / f"{TRIAL}{os.getpid()}"
    trial.mkdir()
    trial.rmdir()


@contextmanager
def _in_words(config: Config) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"run.dir={config.run.dir} cannot hold the run: {line_of(error)}. Set run.dir to a "
            "folder that you may write."
        ) from None
