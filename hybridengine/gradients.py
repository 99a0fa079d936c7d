"""Gradients of a plain module, reduced while its backward pass still runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hybridengine._core import UsageError
from hybridengine.background import Work
from hybridengine.collectives import Op, all_reduce
from hybridengine.comm import Communicator

_BUCKET_BYTES = 25 << 20  # of gradients that start together


class GradientReducer:
    """All-reduces `.grad` of `parameters` over the ranks of `comm`, in buckets.

    A bucket starts as soon as its last gradient is ready, in the background; buckets start in the
    same order on every rank, from the last parameters to the first. With `sync_every=k` gradients
    of k backward passes add up before they are reduced once. Call finish() after each of them.

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
        bucket_bytes: int = _BUCKET_BYTES,
    ) -> None:
        """Throws UsageError on no parameters that need gradients, or sync_every below 1."""
        if sync_every < 1:
            raise UsageError(f"sync_every is {sync_every}. Use 1 or more backward passes.")
        trained = [each for each in parameters if each.requires_grad]
        if not trained:
            raise UsageError("no parameter needs a gradient. Pass those that are trained.")
        self._comm, self._op, self._every = comm, op, sync_every
        self._buckets = _buckets_of(trained[::-1], bucket_bytes)
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
        if self._passes + 1 < self._every:
            return
        self._missing[self._bucket_of[parameter]] -= 1
        while (next_ := len(self._started)) < len(self._buckets) and self._missing[next_] <= 0:
            self._start(next_)

    def _start(self, index: int) -> None:
        gradients = [each.grad for each in self._buckets[index]]
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
            for each in self._buckets[index]:
                if each.grad is None:
                    each.grad = each.detach().new_zeros(each.shape)
            self._start(index)
        for work in self._started:
            work.wait()
        self._passes = 0
        self._begin()
        return True

    def remove(self) -> None:
        """Takes the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()


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
