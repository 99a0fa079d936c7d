"""socket_folder: a temporary folder in which sockets can be made, whatever TMPDIR is.

The system takes no path of a socket that is longer than some 100 bytes, and batch systems set
TMPDIR to paths that are about as long by themselves.
"""

from __future__ import annotations

import os
import tempfile

from hybridengine._core import UsageError

# Of a path without its closing zero, in struct sockaddr_un.
_MAX_PATH_BYTES = 107

# Where TMPDIR is too long: what every system has, then memory.
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")


def socket_parent(room_bytes: int) -> str:
    """TMPDIR, or where it is too long, /tmp: a folder that can be written and below which a socket
    has a path of `room_bytes` more, with the "/" between them.

    Throws UsageError where there is none.
    """
    refused = []
    for folder in dict.fromkeys((tempfile.gettempdir(), *_SHORT)):
        excess = len(os.fsencode(folder)) + room_bytes - _MAX_PATH_BYTES
        if excess > 0:
            refused.append(f"{folder} is too long by {excess} bytes")
        elif not os.access(folder, os.W_OK | os.X_OK):
            refused.append(f"{folder} cannot be written")
        else:
            return folder
    raise UsageError(
        f"there is no folder for sockets: {', '.join(refused)}. Set TMPDIR to a folder that can be "
        f"written and has a short path."
    )
