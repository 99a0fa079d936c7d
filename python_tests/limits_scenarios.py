"""What the ranks of test_limits.py do. Apart from it so that they need no pytest."""

from __future__ import annotations

import os
import resource
import time

import torch
from torch.distributed import FileStore

import hybridengine as he
from hybridengine import Communicator, reshard

NOBODY = 65534


def outcome(call, *args, **options) -> tuple[str, str]:
    try:
        call(*args, **options)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def without_descriptors(comm: Communicator) -> tuple[str, str, float]:
    """Rank 1 may open 64 files and has all of them open when the others send theirs."""
    he.barrier(comm)
    if comm.rank == 1:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        outcome(lambda: [os.open("/dev/null", os.O_RDONLY) for _ in range(64)])
    he.barrier(comm)
    began = time.monotonic()
    seen = outcome(
        reshard, {"w": torch.ones(1 << 20)}, "fsdp2(3)", "replicated(3)", comm=comm, transport="shm"
    )
    return *seen, time.monotonic() - began


def of_another_user(comm: Communicator, path: str, rank: int) -> tuple[str, str]:
    """`comm` is of this rank alone: a communicator is made with the rank that became nobody."""
    if rank == 1:
        os.setuid(NOBODY)
    return outcome(Communicator, FileStore(path, 2), rank, 2, transport="shm", timeout=10)
