"""Gradients of a plain module, reduced while its backward pass still runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import hybridengine.tensors as memory
from hybridengine._core import UsageError
from hybridengine.collective.collectives import Op, all_reduce
from hybridengine.comm import Communicator, communicator_of
from hybridengine.options import one_of, size_bytes, whole
from hybridengine.turns import Work
from hybridengine.wording import counted, kind_of

_OPS = ("sum", "mean", "max", "min")
_NARROW = ("bfloat16", "float16")
_BUCKET_BYTES = 25 << 20  # of gradients that start together


class GradientReducer:
    """All-reduces `.grad` of `parameters` over the ranks of `comm`, in buckets.

    A bucket starts as soon as its last gradient is ready, in the background; buckets start in the
    same order on every rank, from the last parameters to the first. With `sync_every=k` gradients
    of k backward passes add up before they are reduced once. Call finish() after each of them.

    Passes add up in float32 where gradients have 16 bits: that takes 4 bytes per element of such
    parameters, their `.grad` is None until finish() returns True, and it is rounded once.

        reducer = GradientReducer(model.parameters(), comm=comm, sync_every=4)
        loss.backward()
        if reducer.finish():
            optimizer.step(); optimizer.zero_grad()
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        *,
        comm: Communicator | None = None,
        op: Op = "mean",
        sync_every: int = 1,
        bucket_bytes: int | str = _BUCKET_BYTES,
    ) -> None:
        """Throws UsageError on no parameters that need gradients, sync_every below 1, or an
        unknown `op`."""
        if whole("sync_every", sync_every, "backward passes") < 1:
            raise UsageError(f"sync_every is {sync_every}. Use 1 or more backward passes.")
        one_of("op", op, _OPS)
        trained = _trained(parameters)
        self._comm = None if comm is None else communicator_of(comm)
        self._op, self._every = op, sync_every
        self._buckets = _buckets_of(trained[::-1], size_bytes("bucket_bytes", bucket_bytes))
        self._sums: dict[Any, Any] = {}  # float32, of 16-bit gradients
        self._summed = {
            each for each in trained if sync_every > 1 and memory.dtype_name(each.dtype) in _NARROW
        }
        self._bucket_of = {p: i for i, bucket in enumerate(self._buckets) for p in bucket}
        self._hooks = [
            each.register_post_accumulate_grad_hook(self._on_gradient) for each in trained
        ]
        self._passes = 0
        self._begin()

    def _begin(self) -> None:
        self._missing = [len(bucket) for bucket in self._buckets]
        self._started: list[Work] = []

    def _on_gradient(self, parameter: Any) -> None:
        if parameter in self._summed:
            self._add_up(parameter)
        if self._passes + 1 < self._every:
            return
        self._missing[self._bucket_of[parameter]] -= 1
        while (next_ := len(self._started)) < len(self._buckets) and self._missing[next_] <= 0:
            self._start(next_)

    def _add_up(self, parameter: Any) -> None:
        """Moves what is in `.grad` into the sum."""
        gradient, parameter.grad = parameter.grad, None
        if parameter in self._sums:
            self._sums[parameter].add_(gradient)
        else:
            self._sums[parameter] = gradient.float()

    def _gradient(self, parameter: Any) -> Any:
        """What is reduced for a parameter: zeros where this rank has nothing."""
        if parameter not in self._summed:
            if parameter.grad is None:
                parameter.grad = parameter.detach().new_zeros(parameter.shape)
            return parameter.grad
        if parameter.grad is not None:
            self._add_up(parameter)
        if parameter not in self._sums:
            self._sums[parameter] = parameter.detach().float().zero_()
        return self._sums[parameter]

    def _start(self, index: int) -> None:
        gradients = [self._gradient(each) for each in self._buckets[index]]
        work = all_reduce(gradients, self._op, comm=self._comm, async_op=True)
        assert work is not None
        self._started.append(work)

    def finish(self) -> bool:
        """Ends a backward pass. True when gradients have been reduced: it is time for a step.

        A parameter without a gradient on this rank counts as one of zeros.
        """
        self._passes += 1
        if self._passes < self._every:
            return False
        for index in range(len(self._started), len(self._buckets)):
            self._start(index)
        for work in self._started:
            work.wait()
        for parameter, total in self._sums.items():
            parameter.grad = total.to(parameter.dtype)
        self._sums.clear()
        self._passes = 0
        self._begin()
        return True

    def __repr__(self) -> str:
        parameters = counted(sum(map(len, self._buckets)), "parameter")
        buckets = counted(len(self._buckets), "bucket")
        return f"GradientReducer({parameters} in {buckets}, {self._op}, sync_every={self._every})"

    def remove(self) -> None:
        """Takes the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()


def _trained(parameters: Any) -> list[Any]:
    """Those that need gradients. Throws UsageError where there are none, or on something else."""
    if not isinstance(parameters, Iterable):
        raise UsageError(f"parameters is {kind_of(parameters)}. Pass model.parameters().")
    given = list(parameters)
    for each in given:
        if not hasattr(each, "register_post_accumulate_grad_hook"):
            raise UsageError(
                f"a parameter is {kind_of(each)}, not a tensor. Pass model.parameters()."
            )
    trained = [each for each in given if each.requires_grad]
    if not trained:
        raise UsageError("no parameter needs a gradient. Pass those that are trained.")
    return trained


def _buckets_of(parameters: list[Any], bucket_bytes: int) -> list[list[Any]]:
    buckets: list[list[Any]] = [[]]
    used = 0
    for each in parameters:
        size = each.numel() * each.element_size()
        if buckets[-1] and used + size > bucket_bytes:
            buckets.append([])
            used = 0
        buckets[-1].append(each)
        used += size
    return buckets
