"""Collectives on lists of tensors: all_reduce, reduce_scatter, all_gather, broadcast, barrier.

Every rank of the communicator makes the same calls in the same order. Contributions are combined
in ascending rank order, 16-bit floating types in float32, and rounded once: the result has the same
bits on every rank, over every transport, for every bucket size. Arguments that differ, or that are
wrong on one rank, raise the same UsageError on all; nothing has changed and the next call
works.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Literal

from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.collective import link_model
from hybridengine.comm import Communicator, communicator_of
from hybridengine.options import parse_size
from hybridengine.turns import Work

Op = Literal["sum", "mean", "max", "min"]
Tensors = Any  # one tensor, or a list or tuple of them
BucketBytes = int | str  # bytes, '4M', or 'auto'

_made: weakref.WeakKeyDictionary[Communicator, _core.Collectives] = weakref.WeakKeyDictionary()


def all_reduce(
    tensors: Tensors,
    op: Op = "sum",
    *,
    comm: Communicator | None = None,
    async_op: bool = False,
    bucket_bytes: BucketBytes = "auto",
) -> Work | None:
    """Replaces each tensor by the sum, mean, max or min of all ranks', element by element.

    Tensors may be of any strides and of float64, float32, float16, bfloat16 or an integer type; a
    mean of integers is refused. With `async_op` the call returns at once, and the tensors belong to
    it until wait() of what it returns.
    """
    return _call(comm, async_op, "all_reduce", bucket_bytes, _listed(tensors), op)


def reduce_scatter(
    outputs: Tensors,
    inputs: Tensors,
    op: Op = "sum",
    *,
    comm: Communicator | None = None,
    async_op: bool = False,
    bucket_bytes: BucketBytes = "auto",
) -> Work | None:
    """Combines `inputs` of all ranks; each rank keeps its chunk of dim 0.

    inputs[i] has the shape [world * k, ...], outputs[i] [k, ...]: rank r's is rows r*k to (r+1)*k,
    and may lie in its input there.
    """
    return _call(
        comm, async_op, "reduce_scatter", bucket_bytes, _listed(outputs), _listed(inputs), op
    )


def all_gather(
    outputs: Tensors,
    inputs: Tensors,
    *,
    comm: Communicator | None = None,
    async_op: bool = False,
    bucket_bytes: BucketBytes = "auto",
) -> Work | None:
    """Puts the inputs of all ranks one after the other along dim 0, on every rank.

    inputs[i] has the shape [k, ...], outputs[i] [world * k, ...]. An input may be the chunk of its
    output that it will be.
    """
    return _call(comm, async_op, "all_gather", bucket_bytes, _listed(outputs), _listed(inputs))


def broadcast(
    tensors: Tensors,
    src: int = 0,
    *,
    comm: Communicator | None = None,
    async_op: bool = False,
    bucket_bytes: BucketBytes = "auto",
) -> Work | None:
    """Gives every rank the tensors of rank `src`."""
    return _call(comm, async_op, "broadcast", bucket_bytes, _listed(tensors), src)


def barrier(comm: Communicator | None = None) -> None:
    """Returns when every rank has called it."""
    comm = communicator_of(comm)
    _run(comm, _of(comm).barrier, (), False)


def ddp_hook(comm: Communicator, bucket: Any) -> Any:
    """For DistributedDataParallel.register_comm_hook(comm, hybridengine.ddp_hook): the mean of each
    gradient bucket, started as soon as its last gradient is ready. Returns a torch Future."""
    work = all_reduce(bucket.buffer(), "mean", comm=comm, async_op=True)
    assert work is not None
    return work.get_future(bucket.buffer())


ddp_hook.__annotations__ = {}  # torch takes no hook whose annotations are not its own types


def _call(
    comm: Communicator | None, async_op: bool, name: str, bucket_bytes: BucketBytes, *args: Any
) -> Work | None:
    comm = communicator_of(comm)
    method = getattr(_of(comm), name)
    return _run(comm, method, (*args, _bucket_bytes(bucket_bytes)), async_op)


def _run(
    comm: Communicator, function: Callable[..., None], args: tuple[Any, ...], async_op: bool
) -> Work | None:
    """Calls `function` as a call of `comm`, after all that was begun before it."""
    function = functools.partial(_agreed, comm, function)
    if async_op:
        return comm.turns.later(function, args)
    with comm.turns:
        function(*args)
    return None


def _agreed(comm: Communicator, function: Callable[..., None], *args: Any) -> None:
    try:
        function(*args)
    except UsageError:
        if comm.dead:
            raise
        with comm.agreed():  # of one rank alone it would have been the end of the communicator
            raise


def _bucket_bytes(value: BucketBytes) -> Any:
    """0 for 'auto'. What is no size goes on as it is: the core tells all ranks of it."""
    if value == "auto":
        return 0
    try:
        return parse_size(value) if isinstance(value, str) else value
    except UsageError:
        return value


def _of(comm: Communicator) -> _core.Collectives:
    """The collectives of a communicator, made at the first call."""
    if comm not in _made:
        bucket_bytes = link_model.pick_bucket(comm.transport, comm.world)
        _made[comm] = _core.Collectives(comm.core, bucket_bytes)
    return _made[comm]


def _listed(tensors: Tensors) -> list[Any]:
    if isinstance(tensors, list):
        return tensors
    return list(tensors) if isinstance(tensors, tuple) else [tensors]
