"""What the processes of test_engine.py do. Apart from it so that they need no pytest."""

from __future__ import annotations

import resource
import sys
import threading
from typing import Any

import torch
from torch.distributed import FileStore

from hybridengine import Communicator, Resharder, reshard


def anonymous_bytes() -> int:
    """Memory of this process alone: a peer's memory that is mapped here does not count."""
    with open("/proc/self/status") as status:
        row = next(line for line in status if line.startswith("RssAnon:"))
    return int(row.split()[1]) * 1024


class Watch:
    """The most anonymous memory while it is open, beyond that at its start."""

    def __enter__(self) -> Watch:
        self._start, self._most, self._stop = anonymous_bytes(), 0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._stop.wait(0.005):
            self._most = max(self._most, anonymous_bytes())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.grown_bytes = self._most - self._start


def move_past_two_gib(comm: Communicator, elems: int) -> dict[str, Any]:
    """One uint8 tensor from rank 0 to rank 1; `extra_bytes` is what the run took beside it."""
    source = {}
    if comm.rank == 0:
        source = {"w": torch.empty(elems, dtype=torch.uint8).fill_(0)}
        source["w"][-8:] = torch.arange(1, 9)
        source["w"][(1 << 31) - 1] = 77
    resharder = Resharder(source if comm.rank == 0 else None, "hf", "hf@1", comm=comm)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Watch() as watch:
        got = resharder.run()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if comm.rank == 0:
        return {"extra_bytes": watch.grown_bytes, "sent": resharder.report.sent_bytes}
    tensor = got["w"]
    return {
        "extra_bytes": grown - elems,
        "shape": tuple(tensor.shape),
        "last": tensor[-8:].tolist(),
        "marks": [tensor[i].item() for i in ((1 << 31) - 2, (1 << 31) - 1, 1 << 31)],
        "others": int(tensor[: 1 << 20].sum() + tensor[-(1 << 20) : -8].sum()),
        "received": resharder.report.received_bytes,
    }


def move_in_another_order(path: str, rank: int) -> None:
    """A process whose dict has its own order, by its own hash seed; prints what it got."""
    comm = Communicator(FileStore(path, 2), rank, 2, transport="shm", timeout=20)
    names = list({f"t{i}" for i in range(20)})
    if rank == 1:
        names.reverse()
    full = {name: torch.full((4,), float(name[1:])) for name in names}
    full["tied"] = full["t3"]
    if rank == 1:
        full = {"tied": full.pop("tied"), **full}
    mine = {name: tensor[2 * rank : 2 * rank + 2] for name, tensor in full.items()}
    got = reshard(mine, "fsdp2(2)", "replicated(2)", comm=comm)
    right = all(tensor.equal(full[name]) for name, tensor in got.items())
    print(right, len(got), got["tied"] is got["t3"], sep=",")


if __name__ == "__main__":
    move_in_another_order(sys.argv[1], int(sys.argv[2]))
