"""awex's transport over Mooncake and TCP. Needs awex, transformers, megatron-core and Mooncake.

Its receiver reads: the source publishes its tensors and waits until the destination has them, so a
thread on the destination receives exchange after exchange.
"""

from __future__ import annotations

import importlib
import os
import threading
from types import SimpleNamespace
from typing import Any

import pair  # type: ignore[import-not-found]  # beside this file

_TIMEOUT = 60.0


class End:
    def __init__(self, role: str, buffer: Any) -> None:
        self._torch = importlib.import_module("torch")
        self._meta = importlib.import_module("awex.meta.meta_server")
        self._is_src = role == "src"
        self._memory = self._torch.from_numpy(buffer)
        self._steps = 0
        self._server: tuple[str, int] | None = None
        if self._is_src:
            self._server = self._meta.start_meta_server("127.0.0.1")

    def address(self) -> Any:
        return self._server

    def connect(self, theirs: Any) -> None:
        server: Any = self._server if self._is_src else theirs
        host, port = server
        client = self._meta.MetaServerClient(host, port)
        comm = importlib.import_module("awex.transfer.mooncake_comm")
        self._transport = comm.MooncakeTransport(client, 0 if self._is_src else 1, _TIMEOUT)
        self._client = client
        if not self._is_src:
            threading.Thread(target=self._receive, daemon=True).start()

    def write(self, parts: list[tuple[int, int]]) -> None:
        if self._steps == 0:
            self._client.put_object("parts", parts)
        self._transport.send(self._tensors(parts), _plan(parts, 1), self._steps)
        self._steps += 1

    def _receive(self) -> None:
        parts = self._client.get_object("parts", timeout=_TIMEOUT)
        step = 0
        while True:
            self._transport.receive(self._tensors(parts), _plan(parts, 0), step)
            step += 1

    def _tensors(self, parts: list[tuple[int, int]]) -> dict[str, Any]:
        return {f"part.{at}": self._memory[at : at + length] for at, length in parts}

    def progress(self) -> None:
        pass

    def close(self) -> None:
        if self._is_src:
            self._meta.stop_meta_server()


def _plan(parts: list[tuple[int, int]], peer: int) -> Any:
    """Every part whole, to or from `peer`."""
    operations = [
        SimpleNamespace(
            send_shard_meta=SimpleNamespace(name=f"part.{at}"),
            recv_shard_meta=SimpleNamespace(name=f"part.{at}"),
            send_offset=(0,),
            recv_offset=(0,),
            overlap_shape=(length,),
            train_slices=(slice(None),),
            inf_slices=(slice(None),),
        )
        for at, length in parts
    ]
    return SimpleNamespace(operations={peer: operations})


if __name__ == "__main__":
    os.environ["AWEX_MOONCAKE_HOST"] = "127.0.0.1"
    os.environ["AWEX_MOONCAKE_PROTOCOL"] = "tcp"
    os.environ["AWEX_DEVICE_TYPE"] = "cpu"
    pair.main(
        "awex over mooncake", End, ["torch", "awex.meta.meta_server", "awex.transfer.mooncake_comm"]
    )
