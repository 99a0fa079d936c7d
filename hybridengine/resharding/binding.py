"""binding: both ends of a reshard as layouts of one spec, from what all ranks said."""

from __future__ import annotations

from hybridengine._core import UsageError
from hybridengine.layouts.layout import Layout, LayoutRule
from hybridengine.resharding.agree import Part, Statement, common_spec, layout_text, uncut_names
from hybridengine.resharding.selection import select


def bind(
    src: Layout | LayoutRule,
    dst: Layout | LayoutRule,
    statements: list[Statement],
    dtype: str | None,
    *,
    partial: bool,
    parts: list[Part],
) -> tuple[Layout, Layout]:
    """Both sides, bound. Every rank comes to the same, unless layouts made by hand differ: what is
    bound goes into `parts`, for the ranks to compare.

    Throws UsageError where the sides do not fit each other or what the ranks hold.
    """
    for each, name in ((src, "source layout"), (dst, "destination layout")):
        if isinstance(each, Layout):
            parts.append(_part(name, each))
    bound = src if isinstance(src, Layout) else dst if isinstance(dst, Layout) else None
    if isinstance(src, LayoutRule):
        spec = bound.spec if bound else common_spec(statements, src, partial=partial)
        uncut = uncut_names(spec, (statements[r].uncut for r in src.ranks))
        src = src.bind(spec, uncut=uncut)
        parts.append(_part("source layout", src))
    if isinstance(dst, LayoutRule):
        uncut = uncut_names(src.spec, (each.out_uncut for each in statements))
        target = src.spec if dtype is None else src.spec.with_dtype(dtype)
        dst = dst.bind(target, uncut=uncut)
        parts.append(_part("destination layout", dst))
    elif dtype is not None and dst.spec != dst.spec.with_dtype(dtype):
        raise UsageError(
            f"dtype={dtype} does not fit dst {dst.text}, which is bound to another type. "
            "Leave dtype out, or pass the rule instead of the bound layout."
        )
    return select(src, dst, statements) if partial else (src, dst)


def _part(name: str, layout: Layout) -> Part:
    return Part(name, layout.core.digest(), lambda: layout_text(layout))
