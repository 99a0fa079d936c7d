"""Mooncake's transfer engine over TCP, peer to peer. Needs mooncake-transfer-engine-non-cuda and
the shared libraries of rdma-core, which it links even where there is no RDMA."""

from __future__ import annotations

import importlib
from typing import Any

import pair  # type: ignore[import-not-found]  # beside this file


class End:
    def __init__(self, role: str, buffer: Any) -> None:
        self._engine = importlib.import_module("mooncake.engine").TransferEngine()
        if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("the engine did not start")
        self._at = buffer.ctypes.data
        if self._engine.register_memory(self._at, buffer.nbytes) != 0:
            raise RuntimeError("the memory was not registered")

    def address(self) -> Any:
        return f"127.0.0.1:{self._engine.get_rpc_port()}", self._at

    def connect(self, theirs: Any) -> None:
        self._peer, self._their_at = theirs

    def write(self, parts: list[tuple[int, int]]) -> None:
        mine = [self._at + offset for offset, _ in parts]
        theirs = [self._their_at + offset for offset, _ in parts]
        lengths = [length for _, length in parts]
        code = self._engine.batch_transfer_sync_write(self._peer, mine, theirs, lengths)
        if code != 0:
            raise RuntimeError(f"the transfer ended with code {code}")

    def progress(self) -> None:
        pass

    def close(self) -> None:
        self._engine.unregister_memory(self._at)


if __name__ == "__main__":
    pair.main("mooncake", End, ["mooncake.engine"])
