"""planning: what a reshard would move, from shapes alone, without ranks, weights or torch."""

from __future__ import annotations

from typing import Any

from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.layouts.layout import Layout, LayoutRule
from hybridengine.layouts.room import check_room
from hybridengine.layouts.spec import Spec
from hybridengine.options import size_bytes
from hybridengine.wording import kind_of

DEFAULT_BUCKET_BYTES: int = _core.DEFAULT_BUCKET_BYTES

LayoutLike = Layout | LayoutRule | str


def plan(
    spec: Spec,
    src: LayoutLike,
    dst: LayoutLike,
    *,
    dtype: Any = None,
    bucket_bytes: int | str = DEFAULT_BUCKET_BYTES,
) -> Any:
    """The schedule of a reshard without weights or ranks: schedule.plan.certificate has the bytes.

    Throws UsageError where the layouts do not fit the spec, or the moves not into memory.
    """
    size = size_bytes("bucket_bytes", bucket_bytes)
    source, target = bind_both(spec, src, dst, dtype)
    check_room(source, target)
    return _core.make_schedule(_core.make_plan(source.core, target.core), size)


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
