"""masked_all_reduce: a sum or mean over those ranks whose scores reach a threshold.

Only what takes part travels, with a mask that says what it is; what is masked is never added, so
that NaN behind a mask does no harm. docs/masked.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NoReturn

import hybridengine.tensors as memory
from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.agreement import agree
from hybridengine.collective import link_model
from hybridengine.comm import Communicator, communicator_of
from hybridengine.layouts.held import writable
from hybridengine.options import size_bytes
from hybridengine.wording import kind_of

Tensors = Any  # a torch.Tensor, or a list of them


class MaskedResult:
    """`values` and `counts` are lists where the caller gave one. `counts` (int32, of the shape of
    the scores) says how many ranks took part in each entry; None where it was not asked for. `kept`
    is how many entries of this rank took part. `wire_bytes` are those that this rank sent,
    `dense_bytes` those that it would have sent had everything taken part. `route` is the one that
    was taken, "wire" or "dense"."""

    __slots__ = ("_counts", "dense_bytes", "kept", "route", "values", "wire_bytes")

    def __init__(
        self,
        values: Any,
        counts: Any,
        kept: int,
        wire_bytes: int,
        dense_bytes: int,
        route: str = "wire",
    ) -> None:
        """`counts` may be what makes them."""
        self.values, self._counts, self.kept = values, counts, kept
        self.wire_bytes, self.dense_bytes, self.route = wire_bytes, dense_bytes, route

    @property
    def counts(self) -> Any:
        """Made when they are asked for."""
        if isinstance(self._counts, _Counts):
            self._counts = self._counts.tensors()
        return self._counts

    def __reduce__(self) -> tuple[Any, ...]:
        sizes = (self.kept, self.wire_bytes, self.dense_bytes)
        return MaskedResult, (self.values, self.counts, *sizes, self.route)

    def __repr__(self) -> str:
        return (
            f"MaskedResult(kept {self.kept} entries of this rank, sent {self.wire_bytes} of "
            f"{self.dense_bytes} bytes, {self.route})"
        )


class _Counts:
    """Those of all tensors, one after the other, as the core has them."""

    __slots__ = ("core", "dims", "single", "values")

    def __init__(self, core: Any, values: list[Any], granularity: str, single: bool) -> None:
        self.core, self.values, self.single = core, values, single
        self.dims = {"element": None, "row": 1, "tensor": 0}[granularity]

    def tensors(self) -> Any:
        rows = [("", tuple(each.shape)[: self.dims], "int32") for each in self.values]
        ends = accumulate((4 * math.prod(shape) for _, shape, _ in rows), initial=0)
        counts = memory.in_segment(self.core, memory.placed(rows, list(ends)))
        return counts[0] if self.single else counts


def masked_all_reduce(
    values: Tensors,
    scores: Any,
    threshold: float,
    *,
    op: str = "mean",
    granularity: str = "row",
    fill: float = 0.0,
    counts: bool | None = None,
    residual: Tensors | None = None,
    out: Tensors | None = None,
    comm: Communicator | None = None,
    bucket_bytes: int | str = "auto",
    route: str = "fast",
) -> MaskedResult:
    """Sum or mean of each entry over the ranks where its score is at least `threshold`.

    Collective over `comm` (default: the default torch.distributed group). `values`: a tensor or a
    list; they do not change unless they are `out`. `scores` (floating or bool): of the shape of
    `values` where `granularity` is "element", of its first dim for "row", one number per tensor for
    "tensor". `op`: "sum", "mean" (over the contributors of each entry) or "mean_world" (over all
    ranks); integers know "sum" only. `fill`: what an entry without contributors becomes. `counts`:
    whether to return them; for rows and tensors they always are. `residual`: like `values`; is
    added to them, and becomes 0 where an entry takes part and the sum where it does not (there inf
    and NaN are dropped: the residual stays). `bucket_bytes`: at most three times this is allocated
    for packets. `route`: "wire" sends the fewest bytes, "dense" all values beside the masks, "fast"
    takes the one that link_model says is faster for as much as takes part. Results do not depend on
    either.

    Sums are added in ascending order of ranks, in float32 (float64 and integers in themselves), and
    rounded once: every rank gets the same bits, whatever the transport.

    Throws UsageError (on every rank, before anything is written) on arguments that do not fit or
    differ over ranks, and on NaN among scores or as threshold; TransportError where a rank died or
    failed, TimeoutError where one does not answer.
    """
    comm = communicator_of(comm)
    granularity, op, route = str(granularity), str(op), str(route)
    counted = granularity != "element" or bool(counts)
    density = link_model.wire_density(comm.transport, comm.world, granularity)
    given: tuple[Any, ...] = (values, scores, out, residual, granularity, op)
    given += (threshold, fill, bucket_bytes, route, counted)
    with comm.turns:
        done = _core.masked_all_reduce(comm.core, comm.timeout, density, _Package, *given)
    if isinstance(done, str):
        wrong = done
        stated = {"op": op, "granularity": granularity, "route": route, "counts": counted}
        stated |= {"threshold": threshold, "fill": fill, "bucket_bytes": bucket_bytes}
        agree(comm, lambda: _statement(wrong, stated, values), _say_what_differs)  # throws
    made, core_counts, kept, wire_bytes, dense_bytes, taken = done
    single = not isinstance(values, list | tuple)
    listed = _Counts(core_counts, made, granularity, single) if counted else None
    results = _results(out, made, single)
    return MaskedResult(results, listed, kept, wire_bytes, dense_bytes, taken)


class _Package:
    """What the core asks for where an argument is not plain (csrc/bindings/masked_arguments.h)."""

    @staticmethod
    def tensor(what: str, index: int, given: Any, written: bool) -> Any:
        if not hasattr(given, "shape") or not hasattr(given, "dtype"):
            kind = what if what == "tensor" else f"{what} tensor"
            raise UsageError(f"{kind} {index} is {kind_of(given)}. Give torch tensors.")
        return writable({str(index): given}).tensors[str(index)] if written else given

    @staticmethod
    def size(given: Any) -> int:
        if given == "auto":
            return 0
        size = size_bytes("bucket_bytes", given)
        if size < 1:
            raise UsageError(f"bucket_bytes is {given!r}. Give a positive size, or 'auto'.")
        return size

    @staticmethod
    def made(values: list[Any], zeros: bool) -> list[Any]:
        make = memory.zeros_when_touched if zeros else memory.allocate
        return [make(tuple(each.shape), memory.dtype_name(each.dtype)) for each in values]


def _results(out: Any, made: list[Any], single: bool) -> Any:
    if out is not None:
        return out
    return made[0] if single else made


def _statement(error: str, stated: dict[str, Any], values: Any) -> dict[str, Any]:
    """What this rank passed, in words; throws what is wrong with it."""
    if error:
        raise UsageError(error)
    tensors = values if isinstance(values, list | tuple) else [values]
    numbers = {name: repr(float(stated[name])) for name in ("threshold", "fill")}
    shapes = [[*each.shape, memory.dtype_name(each.dtype)] for each in tensors]
    return {key: str(each) for key, each in (stated | numbers).items()} | {"tensors": shapes}


def _say_what_differs(shown: Sequence[Mapping[str, Any]]) -> NoReturn:
    """Throws UsageError: one passes something else."""
    first = shown[0]
    for rank, other in enumerate(shown):
        for key in [*first, *other] if other is not first else ():
            if first.get(key) != other.get(key):
                raise UsageError(
                    f"ranks call masked_all_reduce differently: {key} is {first.get(key)} on rank "
                    f"0 and {other.get(key)} on rank {rank}. Pass the same on every rank."
                )
    raise UsageError("ranks make different calls. Make the same on every rank, in the same order.")
