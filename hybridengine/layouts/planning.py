"""planning: what a reshard would move, from shapes alone, without ranks, weights or torch."""

from __future__ import annotations

from typing import Any

from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.layouts.layout import Layout, LayoutRule
from hybridengine.layouts.spec import Spec
from hybridengine.options import size_bytes, whole
from hybridengine.wording import kind_of

DEFAULT_BUCKET_BYTES: int = _core.DEFAULT_BUCKET_BYTES

LayoutLike = Layout | LayoutRule | str


class Plan:
    """What turns one layout into another: patterns, one per kind of tensor, and the choices among
    replicas. Its size does not grow with tensors times ranks; what one rank has a part in is
    written out when asked for."""

    def __init__(self, core: _core.Plan) -> None:
        self.core = core

    @property
    def certificate(self) -> _core.Certificate:
        """Bytes of each rank against the least that it must receive: `ranks` (dicts, in bytes),
        `moved_bytes`, `received_over_bound`, `sender_max_over_mean`."""
        return self.core.certificate

    @property
    def text(self) -> str:
        """The certificate and a line per kind of tensor, for people."""
        return str(self.core)

    def check(self) -> None:
        """Proves that each destination byte is written exactly once, from a rank that owns it, and
        that no rank receives more than its bound. Throws InternalError."""
        self.core.check()

    def moves_of(self, rank: int) -> list[dict[str, Any]]:
        """What `rank` sends, receives or keeps, as dicts: tensor, src, dst, start and size of the
        box, op, step, num_bytes on the wire and more; by step, destination and place. Empty for a
        rank of neither layout."""
        return self.core.moves_of(whole("rank", rank))

    def schedule(self, rank: int, bucket_bytes: int | str = DEFAULT_BUCKET_BYTES) -> _core.Schedule:
        """The moves of `rank`, cut and fused into buckets of at most `bucket_bytes`, a number or a
        text such as '32M'. Throws UsageError where a bucket cannot hold one element."""
        size = size_bytes("bucket_bytes", bucket_bytes)
        return _core.make_schedule(self.core, whole("rank", rank), size)

    def pairs(
        self, bucket_bytes: int | str = DEFAULT_BUCKET_BYTES
    ) -> list[tuple[int, int, int, int]]:
        """(src, dst, bytes, buckets) of each pair of ranks with payload, ascending. Throws as
        schedule() does."""
        return _core.pairs_of(self.core, size_bytes("bucket_bytes", bucket_bytes))

    def __repr__(self) -> str:
        return repr(self.core)

    def __str__(self) -> str:
        return self.text


def plan(spec: Spec, src: LayoutLike, dst: LayoutLike, *, dtype: Any = None) -> Plan:
    """What a reshard would move, without weights or ranks. `dtype`: of floating tensors in the
    destination.

    Throws UsageError where the layouts do not fit the spec or each other.
    """
    source, target = bind_both(spec, src, dst, dtype)
    return Plan(_core.make_plan(source.core, target.core))


def bind_both(
    spec: Spec, src: LayoutLike, dst: LayoutLike, dtype: Any = None
) -> tuple[Layout, Layout]:
    """Both sides bound to `spec`; floating tensors of the destination as `dtype` where it is given.

    Throws UsageError where a layout does not fit.
    """
    if not isinstance(spec, Spec):
        raise UsageError(
            f"spec is {kind_of(spec)}. Make one with Spec.from_config(), Spec.from_hf() or "
            "Spec.from_tensors()."
        )
    source, target = as_rule(src, "src"), as_rule(dst, "dst")
    target_spec = spec if dtype is None else spec.with_dtype(dtype)
    return (
        source.bind(spec) if isinstance(source, LayoutRule) else source,
        target.bind(target_spec) if isinstance(target, LayoutRule) else target,
    )


def as_rule(layout: LayoutLike, side: str) -> Layout | LayoutRule:
    """A string as a rule. Throws UsageError naming `side` on anything that is no layout."""
    if isinstance(layout, str):
        return LayoutRule.parse(layout)
    if isinstance(layout, (Layout, LayoutRule)):
        return layout
    raise UsageError(
        f"{side} is {kind_of(layout)}. Pass a string such as 'fsdp2(4)', a LayoutRule or a Layout."
    )
