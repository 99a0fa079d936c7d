"""What the ranks of test_regions.py do. Apart from it so that rank processes need no pytest."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from typing import Any

import torch
from transport_world import Me

import hybridengine
from hybridengine import _core
from hybridengine.comm import Communicator

MIB = 1 << 20
NOBODY = 65534


def shared_mib() -> int:
    """Shared memory that this process has pages of, in MiB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("RssShmem"))


def regions_mapped() -> int:
    with open("/proc/self/maps") as maps:
        return sum(map(is_region, maps))


def regions_held() -> tuple[int, int]:
    """Of memory that ranks write into: descriptors and mappings of this process."""
    files = map(link_of, map(int, os.listdir("/proc/self/fd")))
    return sum(map(is_region, files)), regions_mapped()


def is_region(name: str) -> bool:
    return "/memfd:hybridengine-" in name and "-board" not in name


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def drop_what_is_mapped(me: Me) -> list[tuple[int, int]]:
    """Rank 0 fills 64 MiB of rank 1, which then drops it and does nothing more."""
    seen = []

    def note() -> None:
        seen.append((shared_mib(), regions_mapped()))

    note()
    region = _core.Region(64 * MIB) if me.rank == 1 else None
    me.show(region)
    if me.rank == 0:
        me.window(1)[:] = b"x" * (64 * MIB)
        note()
    me.meet()
    if me.rank == 1:
        del region
        me.link.send(("dropped", None))
    me.link.recv()
    note()
    me.endpoint.release_gone()
    note()
    return seen


def drop_in_a_child(me: Me) -> tuple[int, bytes]:
    """A forked child drops its copy of a region: the parent's stays."""
    region = _core.Region(MIB)
    memoryview(region)[:4] = b"here"
    if (pid := os.fork()) == 0:
        del region
        os._exit(0)
    return os.waitpid(pid, 0)[1], bytes(memoryview(region)[:4])


def lose_a_peer_that_offered(me: Me) -> tuple[int, int]:
    region = _core.Region(MIB)
    me.show(region)
    before = regions_mapped()
    me.meet()
    if me.rank == 1:
        me.endpoint.close()
        return 0, 0
    assert me.next()[0] == "lost"
    return before, regions_mapped()


def byte_tensors(size: int) -> tuple[Any, dict[str, Any]]:
    spec = hybridengine.Spec.from_tensors([("w", (size,), "uint8")])
    return spec, {"w": torch.full((size,), 7, dtype=torch.uint8)}


def resharder_of(comm: Communicator, size: int, src: int, dst: int) -> Any:
    spec, tensors = byte_tensors(size)
    layouts = [hybridengine.LayoutRule.parse(f"hf@{rank}").bind(spec) for rank in (src, dst)]
    mine = tensors if comm.rank == src else None
    return hybridengine.Resharder(mine, *layouts, comm=comm)


def drop_results(comm: Communicator) -> list[tuple[int, int, int]]:
    """Rank 0 writes 64 MiB into results of rank 1, which drops them; rank 2 stands by."""
    seen = []

    def note() -> None:
        hybridengine.barrier(comm)
        hybridengine.barrier(comm)  # begins when every rank has dropped what it drops
        seen.append((shared_mib(), regions_mapped(), descriptors()))
        hybridengine.barrier(comm)

    resharder = resharder_of(comm, 64 * MIB, 0, 1)
    note()
    results = resharder.run()
    note()
    del results, resharder
    note()
    return seen


def interrupt_reserving(comm: Communicator, size: int) -> tuple[str, str, int, tuple[int, int]]:
    """Rank 1 is interrupted while it reserves its results. What it raises, how many bytes it had
    reserved by then, and what it still holds."""
    layouts = [hybridengine.LayoutRule.parse(f"hf@{rank}") for rank in (0, 1)]
    source = {"w": torch.empty(size, dtype=torch.uint8)} if comm.rank == 0 else None
    resharder = hybridengine.Resharder(source, *layouts, comm=comm)
    kept: list[int] = []

    def press_once_it_is_there() -> None:
        while not kept:
            for file in map(int, os.listdir("/proc/self/fd")):
                if "hybridengine-destination" in link_of(file):
                    kept.append(os.open(f"/proc/self/fd/{file}", os.O_RDONLY))
                    return os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.001)

    presser = threading.Thread(target=press_once_it_is_there)
    if comm.rank == 1:
        presser.start()
    try:
        resharder.run()
        seen = ("nothing", "")
    except BaseException as error:
        seen = (type(error).__name__, str(error))
    reserved_bytes = 0
    if comm.rank == 1:
        presser.join()
        reserved_bytes = os.fstat(kept[0]).st_blocks * 512
        os.close(kept[0])
    return *seen, reserved_bytes, regions_held()


def reshard_among_some(comm: Communicator, src: str, dst: str) -> tuple[int, int, int]:
    """A run from `src` to `dst`; the other ranks leave the call at once and make no other one until
    those are through, which their return says. What this rank then has of memory that ranks write
    into: descriptors, mappings; and its other descriptors that it had not before."""
    spec, tensors = byte_tensors(MIB)
    sources, targets = (hybridengine.LayoutRule.parse(rule).bind(spec) for rule in (src, dst))
    parts = tensors["w"].chunk(len(sources.ranks))
    mine = {"w": parts[comm.rank]} if comm.rank in sources.ranks else None
    resharder = hybridengine.Resharder(mine, sources, targets, comm=comm)
    hybridengine.barrier(comm)
    before = descriptors()
    results = resharder.run()
    if comm.rank in targets.ranks:
        assert bytes(results["w"].numpy().tobytes()) == bytes([7]) * MIB
    files, mapped = regions_held()
    return files, mapped, max(0, descriptors() - before - files)


def offer_to_the_others(comm: Communicator) -> str:
    """Rank 1 runs out of descriptors in a call; rank 2 hears of it in its next one."""
    resharder = resharder_of(comm, MIB, 0, 1)
    hybridengine.barrier(comm)
    if comm.rank == 1:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        kept = []
        try:
            while True:
                kept.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass  # the table is full
    try:
        resharder.run()
        hybridengine.barrier(comm)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def pages_of_mail(me: Me) -> list[int]:
    """4 KiB pages of its board file that this rank uses for mail: while 0 and 1 talk, and 2 keeps
    silent until both have told it to; and when all have talked."""
    files = map(int, os.listdir("/proc/self/fd"))
    (board,) = [fd for fd in files if "hybridengine-board" in link_of(fd)]
    start = os.fstat(board).st_blocks
    seen = []
    if me.rank < 2:
        for _ in range(100):
            me.endpoint.send(1 - me.rank)
            assert me.next_from(1 - me.rank)
        seen.append((os.fstat(board).st_blocks - start) // 8)
        me.endpoint.send(2)
    else:
        assert me.next_from(0) and me.next_from(1)
    me.meet()
    me.meet()
    seen.append((os.fstat(board).st_blocks - start) // 8)
    return seen


def link_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def as_nobody(pipe: Any, path: str, rank: int, world: int, rounds: list[tuple[str, str]]) -> None:
    from torch.distributed import FileStore

    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    try:
        comm = Communicator(FileStore(path, world), rank, world, transport="shm", timeout=60)
        for src, dst in rounds:
            pipe.send(reshard_among_some(comm, src, dst))
            pipe.recv()  # an idle rank makes no call meanwhile
        comm.close()
    except BaseException as error:
        pipe.send(repr(error))
    os._exit(0)
