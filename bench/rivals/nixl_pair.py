"""NIXL's agents with their default back end, UCX. Needs nixl-cu12 and torch, which it imports."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pair  # type: ignore[import-not-found]  # beside this file


class End:
    def __init__(self, role: str, buffer: Any) -> None:
        nixl = importlib.import_module("nixl_cu12._api")
        self._agent = nixl.nixl_agent(role)
        self._at, self._size = buffer.ctypes.data, buffer.nbytes
        rows = [(self._at, self._size, 0, "")]
        self._registered = self._agent.register_memory(rows, mem_type="DRAM")
        self._handle: Any = None

    def address(self) -> Any:
        return self._agent.get_agent_metadata(), self._at

    def connect(self, theirs: Any) -> None:
        metadata, self._their_at = theirs
        self._peer = self._agent.add_remote_agent(metadata)

    def write(self, parts: list[tuple[int, int]]) -> None:
        """The descriptors are made once and used again, as its own examples do."""
        if self._handle is None:
            mine = [(self._at + offset, length, 0) for offset, length in parts]
            theirs = [(self._their_at + offset, length, 0) for offset, length in parts]
            self._handle = self._agent.initialize_xfer(
                "WRITE",
                self._agent.get_xfer_descs(mine, mem_type="DRAM"),
                self._agent.get_xfer_descs(theirs, mem_type="DRAM"),
                self._peer,
            )
        state = self._agent.transfer(self._handle)
        while state == "PROC":
            state = self._agent.check_xfer_state(self._handle)
        if state != "DONE":
            raise RuntimeError(f"the transfer ended as {state}")

    def progress(self) -> None:
        self._agent.get_new_notifs()

    def close(self) -> None:
        if self._handle is not None:
            self._agent.release_xfer_handle(self._handle)
        self._agent.deregister_memory(self._registered)


if __name__ == "__main__":
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    pair.main("nixl", End, ["nixl_cu12._api"])
