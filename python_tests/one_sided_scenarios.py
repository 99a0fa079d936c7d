"""What one rank lacks within a collective: it raises at once, and all others hear why.

Apart from test_one_sided.py so that it needs no pytest.
"""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

import hybridengine as he
from hybridengine import Communicator, Resharder, TwoStep

ELEMS = 8 << 20  # 32 MB of float32


def without_room(comm: Communicator, what: str) -> dict[str, Any]:
    """Rank 1 may not make files, and so no memory that others map, beyond 1 MiB; the collective
    `what` has begun when it finds out."""
    run = COLLECTIVES[what](comm)
    he.barrier(comm)
    if comm.rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    began = time.monotonic()
    try:
        run()
    except Exception as error:
        seen = (type(error).__name__, str(error))
    else:
        seen = ("nothing", "")
    return {"seen": seen, "seconds": time.monotonic() - began, "dead": comm.dead}


def _all_reduce(comm: Communicator) -> Callable[[], Any]:
    tensor = torch.ones(ELEMS)
    return lambda: he.all_reduce(tensor, comm=comm)


def _masked_all_reduce(comm: Communicator) -> Callable[[], Any]:
    rows = torch.ones(ELEMS // 1024, 1024)
    scores = torch.ones(len(rows))
    return lambda: he.masked_all_reduce(rows, scores, 0.5, out=rows, comm=comm)


def _reshard(comm: Communicator) -> Callable[[], Any]:
    shard = {"w": torch.ones(ELEMS // comm.world)}
    return Resharder(shard, f"fsdp2({comm.world})", f"replicated({comm.world})", comm=comm).run


def _two_step(comm: Communicator) -> Callable[[], Any]:
    module = {"w": torch.nn.Parameter(torch.ones(ELEMS // 1024, 1024))}
    step = TwoStep(
        module, lambda flat: torch.optim.SGD(flat, lr=0.1), f"replicated({comm.world})", comm=comm
    )
    module["w"].grad = torch.ones_like(module["w"])
    return step.step


COLLECTIVES: dict[str, Callable[[Communicator], Callable[[], Any]]] = {
    "all_reduce": _all_reduce,
    "masked_all_reduce": _masked_all_reduce,
    "reshard": _reshard,
    "two_step": _two_step,
}
