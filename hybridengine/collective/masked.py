"""masked_all_reduce: a sum or mean over those ranks whose scores reach a threshold.

Only what takes part travels, with a mask that says what it is; what is masked is never added, so
that NaN behind a mask does no harm. docs/masked.md has the formulas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import hybridengine.tensors as memory
from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.agreement import agree, raise_first
from hybridengine.collective import link_model
from hybridengine.comm import Communicator, communicator_of
from hybridengine.layouts.held import writable
from hybridengine.options import size_bytes
from hybridengine.wording import kind_of

Tensors = Any  # a torch.Tensor, or a list of them


@dataclass(frozen=True, repr=False)
class MaskedResult:
    """`values` and `counts` are lists where the caller gave one. `counts` (int32, of the shape of
    the scores) says how many ranks took part in each entry; None where it was not asked for. `kept`
    is how many entries of this rank took part. `wire_bytes` are those that this rank sent,
    `dense_bytes` those that it would have sent had everything taken part. `route` is the one that
    was taken, "wire" or "dense"."""

    values: Any
    counts: Any
    kept: int
    wire_bytes: int
    dense_bytes: int
    route: str = "wire"

    def __repr__(self) -> str:
        return (
            f"MaskedResult(kept {self.kept} entries of this rank, sent {self.wire_bytes} of "
            f"{self.dense_bytes} bytes, {self.route})"
        )


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
    with comm.between_calls():
        mine = _read_arguments(
            values,
            scores,
            threshold,
            op=op,
            granularity=granularity,
            fill=fill,
            counts=granularity != "element" or bool(counts),
            residual=residual,
            out=out,
            bucket_bytes=bucket_bytes,
            route=route,
        )
        _reduce(comm, mine, link_model.wire_density(comm.transport, comm.world, granularity))
    single = not isinstance(values, list | tuple)
    made, counted = _as_given(mine.out, single), _as_given(mine.counts, single)
    done = mine.reduction
    sizes = (done.kept, done.wire_bytes, done.dense_bytes)
    return MaskedResult(made if out is None else out, counted, *sizes, route=done.route)


@dataclass
class _Arguments:
    """What this rank passed. Without memory where the statement has an error."""

    error: str = ""
    stated: dict[str, Any] = field(default_factory=dict)
    out: list[Any] | None = None
    counts: list[Any] | None = None
    reduction: Any = None


def _read_arguments(
    values: Any,
    scores: Any,
    threshold: Any,
    *,
    residual: Any,
    out: Any,
    counts: bool,
    bucket_bytes: Any,
    **options: Any,
) -> _Arguments:
    """Raises nothing on wrong arguments: all ranks hear of them and raise the same."""
    mine = _Arguments()
    for name in ("op", "granularity", "route"):
        options[name] = str(options[name])
    stated = {**options, "counts": counts, "bucket_bytes": bucket_bytes}
    try:
        tensors = _listed(values, "tensor")
        options["threshold"] = _number("threshold", threshold)
        options["fill"] = _number("fill", options["fill"])
        stated.update(threshold=repr(options["threshold"]), fill=repr(options["fill"]))
        stated["tensors"] = [[*each.shape, memory.dtype_name(each.dtype)] for each in tensors]
        if math.isnan(options["threshold"]):
            raise UsageError("threshold is NaN. Give a number; inf lets nobody take part.")
        zeros = out is None and options["fill"] == 0 and math.copysign(1, options["fill"]) > 0
        mine.out = _targets(tensors, zeros) if out is None else _matching(out, tensors, "out")
        mine.counts = _counts(tensors, options["granularity"]) if counts else None
        mine.reduction = _core.MaskedReduction(
            tensors,
            _score_list(scores, values, tensors),
            mine.out,
            mine.counts,
            None if residual is None else _matching(residual, tensors, "residual"),
            out_is_filled=zeros,
            bucket_bytes=_bucket_bytes(bucket_bytes),
            **options,
        )
        with_nan = mine.reduction.read_scores()
        if with_nan >= 0:
            raise UsageError(f"a score of tensor {with_nan} is NaN. Mend it, or mask it with -inf.")
    except UsageError as fault:
        mine.error = str(fault)
    stated = {key: each if isinstance(each, list) else str(each) for key, each in stated.items()}
    mine.stated = stated
    return mine


def _listed(tensors: Any, what: str) -> list[Any]:
    listed = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
    for index, each in enumerate(listed):
        if not hasattr(each, "shape") or not hasattr(each, "dtype"):
            raise UsageError(f"{what} {index} is {kind_of(each)}. Give torch tensors.")
    return listed


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{name} is {value!r}: {error}. Give a number.") from None


def _bucket_bytes(value: Any) -> int:
    if value == "auto":
        return 0
    size = size_bytes("bucket_bytes", value)
    if size < 1:
        raise UsageError(f"bucket_bytes is {value!r}. Give a positive size, or 'auto'.")
    return size


def _targets(tensors: list[Any], zeros: bool) -> list[Any]:
    make = memory.zeros_when_touched if zeros else memory.allocate
    return [make(tuple(each.shape), memory.dtype_name(each.dtype)) for each in tensors]


def _counts(tensors: list[Any], granularity: Any) -> list[Any]:
    """Zeros, of the shape of the scores: an entry without elements is never counted."""
    dims = {"element": None, "row": 1, "tensor": 0}.get(granularity)
    return [memory.allocate(tuple(each.shape)[:dims], "int32", zeroed=True) for each in tensors]


def _matching(given: Any, tensors: list[Any], name: str) -> list[Any]:
    listed = _listed(given, f"{name} tensor")
    if len(listed) != len(tensors):
        raise UsageError(f"{name} has {len(listed)} tensors, values {len(tensors)}. Give as many.")
    named = {str(i): each for i, each in enumerate(listed)}
    return list(writable(named).tensors.values())


def _score_list(scores: Any, values: Any, tensors: list[Any]) -> list[Any]:
    """One tensor or float for each tensor of the values."""
    single = not isinstance(values, list | tuple)
    if not single and not hasattr(scores, "__iter__"):
        raise UsageError(f"scores are {scores!r}. Give one for each of the {len(tensors)} tensors.")
    listed = [scores] if single else list(scores)
    if len(listed) != len(tensors):
        raise UsageError(f"there are {len(listed)} scores, {len(tensors)} tensors. Give as many.")
    return [each if hasattr(each, "shape") else _number("a score", each) for each in listed]


def _as_given(tensors: list[Any] | None, single: bool) -> Any:
    return tensors[0] if single and tensors is not None else tensors


def _reduce(comm: Communicator, mine: _Arguments, wire_density: float) -> None:
    """Throws UsageError unless all ranks said the same, and nothing is wrong. A digest of what each
    says tells that in microseconds; their words are looked at only where it does not fit."""
    statement = _core.digest(json.dumps(mine.stated).encode())
    with comm.call():
        if not mine.error and mine.reduction.agree(comm.core, statement, wire_density):
            mine.reduction.run(comm.core, statement)
            return
        if mine.error:
            _core.MaskedReduction.refuse(comm.core)
    agree(comm, lambda: {"error": mine.error, **mine.stated}, _say_what_differs)


def _say_what_differs(shown: Sequence[Mapping[str, Any]]) -> None:
    """Throws UsageError: one has an error, or passes something else."""
    raise_first([each["error"] for each in shown])
    first = shown[0]
    for rank, other in enumerate(shown):
        for key in [*first, *other] if other is not first else ():
            if first.get(key) != other.get(key):
                raise UsageError(
                    f"ranks call masked_all_reduce differently: {key} is {first.get(key)} on rank "
                    f"0 and {other.get(key)} on rank {rank}. Pass the same on every rank."
                )
    raise UsageError("ranks make different calls. Make the same on every rank, in the same order.")
