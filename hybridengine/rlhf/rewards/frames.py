"""frames: Python values over a stream socket, each with its length in front. Not for strangers:
values are pickled, and both ends are processes of one run."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")
_READ_BYTES = 1 << 18


class Frames:
    """One end of the socket, which it owns."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, value: Any) -> None:
        """Blocks until the system has taken all of it. Throws OSError when the peer is gone."""
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        """The next value; blocks for it. Throws EOFError when the peer is gone."""
        while (size := self._whole()) is None:
            if not self._read():
                raise EOFError
        return self._take(size)

    def arrived(self) -> tuple[list[Any], bool]:
        """The values that one read completes, and whether the peer is there still. Blocks unless
        there is something to read."""
        alive = self._read()
        values = []
        while (size := self._whole()) is not None:
            values.append(self._take(size))
        return values, alive

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> bool:
        try:
            data = self._socket.recv(_READ_BYTES)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)

    def _whole(self) -> int | None:
        """The size of the first value, if all of it is here."""
        if len(self._buffer) < _LENGTH.size:
            return None
        size: int = _LENGTH.unpack_from(self._buffer)[0]
        return size if len(self._buffer) >= _LENGTH.size + size else None

    def _take(self, size: int) -> Any:
        end = _LENGTH.size + size
        value = pickle.loads(memoryview(self._buffer)[_LENGTH.size : end].tobytes())
        del self._buffer[:end]
        return value
