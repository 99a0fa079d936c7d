"""What the processes of test_engine.py do. Apart from it so that they need no pytest."""

from __future__ import annotations

import resource
import sys
import threading
from typing import Any

import torch
from torch.distributed import FileStore

from hybridengine import Communicator, Layout, Resharder, Spec, _core, empty, reshard


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


# Of halves of rows, rank 1 keeps some of its own and sends the others.
SHAPES = {"big": (64, 6144), "short": (7, 5), "one": (1,), "none": (0, 3), "last": (40, 6144)}


def halves(spec: Spec, ranks: list[int], dim: int) -> Layout:
    """Every tensor in two, along `dim` where it has it."""
    boxes: dict[int, dict[str, tuple[list[int], list[int]]]] = {}
    for at, rank in enumerate(ranks):
        boxes[rank] = {}
        for name, shape in SHAPES.items():
            cut = min(dim, len(shape) - 1)
            start, size = [0] * len(shape), list(shape)
            step = -(-shape[cut] // 2)
            start[cut] = min(at * step, shape[cut])
            size[cut] = min(step, shape[cut] - start[cut])
            boxes[rank][name] = (start, size)
    return Layout.from_boxes(spec, boxes, text=f"halves of dim {dim}")


def parts_of(full: dict[str, torch.Tensor], layout: Layout, rank: int) -> list[torch.Tensor]:
    """This rank's local tensors, in layout order."""
    parts = {name: torch.empty(shape) for name, shape, _ in layout.locals(rank)}
    for tensor, local, start, size, _, _ in layout.pieces(rank):
        box = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
        parts[local].copy_(full[tensor][box])
    return list(parts.values())


def advance_to_the_end(run: Any, sources: list[Any], outs: list[Any]) -> dict[str, Any]:
    """Overwrites and lets go of each source as soon as it is released; what a stream asks for
    comes into `outs`."""
    released, first = [], None
    while (event := run.advance())[0] != "done":
        kind, local = event
        if kind == "need":
            run.provide(local, outs[local])
        elif kind == "released":
            if first is None and sources[local].numel() > 0:
                first = run.report.to_dict()
            released.append(local)
            sources[local].fill_(-7)
            sources[local] = None
    return {"released": released, "first": first or {}, "last": run.report.to_dict()}


def give_sources_back(
    comm: Communicator, cut: str, memory: str, bucket_bytes: int, verify: bool
) -> list[dict[str, Any]]:
    """What advance_to_the_end() saw in each of three runs, in which all results are right though
    every source is overwritten as soon as it may be."""
    spec = Spec.from_tensors([(name, shape, "float32") for name, shape in SHAPES.items()])
    src = halves(spec, [0, 1], 0)
    dst = halves(spec, [1, 2], 1 if cut == "columns" else 0)
    if cut == "sum":
        src = Layout.replicated(3).bind(spec).partial("sum")
        dst = Layout.replicated(3).bind(spec)
    stream = memory == "stream"
    schedule = _core.make_schedule(
        _core.make_plan(src.core, dst.core), comm.rank, bucket_bytes, in_order=stream
    )
    routine = _core.Routine(
        schedule,
        readable=list(range(comm.world)),
        verify=verify,
        open_bytes=2 * bucket_bytes if stream else 0,
        tell_released=True,
    )
    seen = []
    for turn in range(3):
        generator = torch.Generator().manual_seed(turn)
        full = {
            n: torch.randint(-99, 99, s, generator=generator).float() for n, s in SHAPES.items()
        }
        sources = parts_of(full, src, comm.rank)
        wanted = parts_of(full, dst, comm.rank)
        outs = [torch.full_like(each, -1) for each in wanted]
        if memory == "ours":
            outs = list(empty(dst, comm.rank).values())
        with comm.call():
            targets = [] if stream else outs
            run = _core.Run(comm.core, routine, list(sources), targets)
            seen.append(advance_to_the_end(run, sources, outs))
        times = 3 if cut == "sum" else 1
        for found, each in zip(outs, wanted, strict=True):
            assert torch.equal(found, each * times), turn
    return seen


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
