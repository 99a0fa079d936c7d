"""lock: says that a live run has a folder.

It is an flock on a file in the folder, which the system lets go when the process ends, however it
ends. The file names the process for people.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from pathlib import Path

from hybridengine._core import UsageError

LOCK = ".lock"

# What a file system answers that has no flock, as some network mounts have none.
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF}


class FolderLock:
    """Of one folder, from its making to release(); it moves with the folder."""

    def __init__(self, folder: Path) -> None:
        """Throws UsageError where a live run has the folder; OSError where it cannot be written,
        FileNotFoundError also where it was moved or removed meanwhile.

        A file system without locks is warned of: the folder counts as free there.
        """
        path = folder / LOCK
        self._file: int = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take(folder)
            if not os.path.samestat(os.fstat(self._file), os.stat(path)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
            self._sign()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _take(self, folder: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._file, 256, 0).decode(errors="replace").strip()
            raise UsageError(
                f"{folder} belongs to a run that is alive ({owner or 'of unknown process'}). Set "
                "another run.name, or wait until that run has ended."
            ) from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            sys.stderr.write(
                f"hybridengine: {folder} cannot be locked ({error.strerror}), so nothing keeps a "
                "second run of this name out of it. Give every run a run.name of its own.\n"
            )

    def _sign(self) -> None:
        text = f"process {os.getpid()} on {socket.gethostname()}\n".encode()
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))  # after it: a reader always finds a name
