"""What the ranks of test_failure.py do. Apart from it so that they need no pytest."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore

from hybridengine import Communicator, Resharder, all_reduce, reshard

SECONDS_OF_A_STUCK_RANK = 60
NUM_TENSORS = 64
FAILS_AT = 10


def resources() -> tuple[int, int, int]:
    """Descriptors, threads and children of this process."""
    tasks = Path(f"/proc/{os.getpid()}/task")
    children = sum(len((task / "children").read_text().split()) for task in tasks.iterdir())
    return len(os.listdir("/proc/self/fd")), len(list(tasks.iterdir())), children


def left_since(before: tuple[int, int, int]) -> tuple[int, ...]:
    """How many more resources there are. Fewer is no fault: what is idle is given back at a time of
    its own, maybe after `before` was taken."""
    return tuple(max(0, now - then) for now, then in zip(resources(), before, strict=True))


def appear(path: Path, limit: float = 30) -> float:
    """When the file was there."""
    deadline = time.monotonic() + limit
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.002)
    return time.monotonic()


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "hybridengine" in name}


def join(
    folder: str, name: str, rank: int, world: int, *, transport: str = "shm", **options: Any
) -> Communicator:
    store = FileStore(f"{folder}/{name}", world)
    return Communicator(store, rank, world, name=name, transport=transport, **options)


def shards(rank: int, n: int, elems: int = 1 << 18) -> dict[str, torch.Tensor]:
    """A part of NUM_TENSORS tensors of `elems` float32, tensor i full of i."""
    return {f"w{i}": torch.full((elems // n + 1,), float(i)) for i in range(NUM_TENSORS)}


def attempt(action: Any) -> dict[str, Any]:
    """What `action()` raised and when."""
    try:
        action()
    except BaseException as error:
        return {
            "type": type(error).__name__,
            "text": str(error),
            "at": time.monotonic(),
            "error": error,
        }
    return {"type": "nothing", "text": "", "at": time.monotonic(), "error": None}


def fail_midway(comm: Communicator, folder: str, how: str) -> dict[str, Any]:
    """Rank 1 of 3 fails in the middle of a stream; the others say what they saw, what is left, and
    whether the two of them can go on."""
    comm.close()
    before = resources()
    comm = join(folder, "first", comm.rank, comm.world, timeout=5.0, enter_timeout=30.0)
    resharder = Resharder(
        shards(comm.rank, 3), "fsdp2(3)", "replicated(3)", comm=comm, bucket_bytes=1 << 18
    )
    handed: list[str] = []

    def take(name: str, tensor: torch.Tensor) -> None:
        handed.append(name)
        if comm.rank != 1 or len(handed) < FAILS_AT:
            return
        (Path(folder) / "midway").touch()
        if how == "raise":
            raise ValueError("x")
        time.sleep(SECONDS_OF_A_STUCK_RANK)

    seen = attempt(lambda: resharder.stream(take))
    again = attempt(resharder.run)
    comm.close()
    left = left_since(before)
    seen["error"] = again["error"] = None  # until here the tracebacks held everything
    next_rank = {0: 0, 2: 1}.get(comm.rank)
    if next_rank is not None:
        both = join(folder, "second", next_rank, 2, timeout=20.0)
        got = reshard({"w": torch.full((2,), next_rank + 1.0)}, "fsdp2(2)", "hf", comm=both)
        seen["retry"] = [] if next_rank else got["w"].tolist()
        both.close()
    return {**seen, "again": again, "left": left, "handed": len(handed)}


def fail_in_all_reduce(comm: Communicator, folder: str, how: str, transport: str) -> dict[str, Any]:
    """As fail_midway, in one of many all-reduces of 64 MiB: rank 1 raises in the middle of one, or
    waits there for the signal that it gets."""
    comm.close()
    before = resources()
    comm = join(folder, "first", comm.rank, 3, transport=transport, timeout=5.0, enter_timeout=30.0)
    tensor = torch.zeros(64 << 18)
    all_reduce(tensor, comm=comm)
    if comm.rank == 1:
        (Path(folder) / "midway").touch()
        if how == "raise":
            signal.signal(signal.SIGALRM, _raise)
            signal.setitimer(signal.ITIMER_REAL, 0.05)

    def reduce_on() -> None:
        with comm.between_calls():  # the signal may also come between two of them
            while True:
                all_reduce(tensor, comm=comm)

    seen = attempt(reduce_on)
    again = attempt(lambda: all_reduce(tensor, comm=comm))
    comm.close()
    left = left_since(before)
    seen["error"] = again["error"] = None  # until here the tracebacks held everything
    next_rank = {0: 0, 2: 1}.get(comm.rank)
    if next_rank is not None:
        both = join(folder, "second", next_rank, 2, transport=transport, timeout=20.0)
        summand = torch.full((1 << 18,), next_rank + 1.0)
        all_reduce(summand, comm=both)
        seen["retry"] = summand.unique().tolist()
        both.close()
    return {**seen, "again": again, "left": left}


def _raise(number: int, frame: Any) -> None:
    raise ValueError("x")


def die_while_running(comm: Communicator) -> dict[str, Any]:
    """Rank 1 is killed at some moment of many runs, by itself."""
    resharder = Resharder(
        shards(comm.rank, 3, 1 << 12), "fsdp2(3)", "replicated(3)", comm=comm, bucket_bytes=1 << 12
    )
    resharder.run()
    if comm.rank == 1:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def run_on() -> None:
        while True:
            resharder.run()

    seen = attempt(run_on)
    return {"type": seen["type"], "text": seen["text"]}


def come_late(comm: Communicator, folder: str, seconds: float, enter_timeout: float) -> dict:
    """Rank 1 lives but enters the second run late. Rank 0 counts on another thread meanwhile."""
    comm.close()
    comm = join(folder, "late", comm.rank, comm.world, timeout=1.0, enter_timeout=enter_timeout)
    resharder = Resharder(shards(comm.rank, 2, 64), "fsdp2(2)", "replicated(2)", comm=comm)
    resharder.run()
    counted, stop = 0, threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    if comm.rank == 1:
        time.sleep(seconds)
    else:
        counter.start()
    began = time.monotonic()
    seen = attempt(resharder.run)
    seen.update(waited=seen.pop("at") - began, counted=counted, error=None)
    stop.set()
    return seen


def wait_for_ctrl_c(comm: Communicator, folder: str) -> dict[str, Any]:
    """Rank 0 waits and is interrupted; rank 2 waits as well; rank 1 comes afterwards."""
    resharder = Resharder(shards(comm.rank, 3, 64), "fsdp2(3)", "replicated(3)", comm=comm)
    if comm.rank == 1:
        while not (Path(folder) / "interrupted").exists():
            time.sleep(0.01)
    else:
        (Path(folder) / f"waiting{comm.rank}").touch()
    seen = attempt(resharder.run)
    if comm.rank == 0:
        (Path(folder) / "interrupted").touch()
    seen["error"] = None
    return seen


def fork_with_a_communicator(comm: Communicator) -> dict[str, Any]:
    """A forked child may not use it, and leaves it alone when it closes it; the parent goes on."""
    resharder = Resharder(shards(comm.rank, 2, 64), "fsdp2(2)", "replicated(2)", comm=comm)
    resharder.run()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        seen = attempt(resharder.run)
        comm.close()
        comm.close()
        os.write(writer, f"{seen['type']}: {seen['text']}".encode())
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 10_000).decode()
    os.close(reader)
    _, status = os.waitpid(child, 0)
    for _ in range(3):
        got = resharder.run()
    return {"child": said, "status": status, "right": got["w5"].eq(5).all().item()}


def run_many_times(comm: Communicator, runs: int, settle: int) -> dict[str, Any]:
    """How memory, descriptors and threads grow from run `settle` to the last."""
    mine = {f"w{i}": torch.full((512 // 2, 512), float(i)) for i in range(16)}
    resharder = Resharder(
        mine, "fsdp2(2)", "replicated(2)", comm=comm, bucket_bytes=1 << 20, verify=True
    )
    samples = []
    for number in range(runs):
        got = resharder.run()
        assert got["w3"].eq(3).all()
        del got
        if number in (settle, runs - 1):
            with open("/proc/self/statm") as statm:
                pages = int(statm.read().split()[1])
            samples.append((pages * os.sysconf("SC_PAGE_SIZE"), *resources()))
    grown = [now - then for then, now in zip(*samples, strict=True)]
    return {"rss_bytes": grown[0], "others": grown[1:]}
