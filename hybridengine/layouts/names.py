"""Names: how the names that a caller uses meet the names that a layout uses.

A name is first tried as it is. Only then is it tried without the components that wrappers add
(data parallel, torch.compile, FSDP, activation checkpointing, peft), so a submodule that is really
called 'module' keeps its name. What matches nothing is an error, never skipped in silence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from hybridengine._core import UsageError
from hybridengine.layouts.adapters import check_adapters, originals
from hybridengine.layouts.wrappers import unwrapped
from hybridengine.wording import listed


def template_of(name: str) -> str:
    """`name` with each component that is a number written as '*'."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def canonical_names(names: Iterable[str], targets: Collection[str]) -> dict[str, str]:
    """The name to use for each of `names`: the target that it matches, exactly or unwrapped, or
    itself where none does.

    Throws UsageError where two names would match one target.
    """
    known = set(targets)
    result: dict[str, str] = {}
    taken: dict[str, str] = {}
    for name in names:
        short = unwrapped(name)
        match = name if name in known or short not in known else short
        if match in taken:
            raise UsageError(
                f"two names match {match!r}: {taken[match]!r} and {name!r}. Pass only one of them."
            )
        taken[match] = name
        result[name] = match
    return result


def check_matched(
    sources: Iterable[str],
    destinations: Iterable[str],
    *,
    written: Mapping[str, str] | None = None,
    dst: str = "the destination",
    partial: bool = False,
) -> None:
    """Throws UsageError that lists the sources without destination, or the other way round.

    `written`: sources as the caller wrote them. `dst`: the destination's layout. With `partial` a
    source may have no destination. Adapters are never left behind by the weights that they change;
    an original whose trained copy is there is none.
    """
    given = {name: (written or {}).get(name, name) for name in sources}
    wanted = list(destinations)
    taken = set(wanted)
    unsent = [as_written for name, as_written in given.items() if name not in taken]
    if unsent:
        moved = [as_written for name, as_written in given.items() if name in taken]
        check_adapters(given.values(), moved, unsent, dst)
        replaced = originals(list(given.values()))
        unsent = [] if partial else [name for name in unsent if name not in replaced]
    unfilled = [name for name in wanted if name not in given]
    wrong = []
    if unsent:
        have = "has" if len(unsent) == 1 else "have"
        wrong.append(f"{listed(unsent)} in the source {have} no destination")
    if unfilled:
        wrong.append(f"{listed(unfilled)} in the destination received nothing")
    if wrong:
        raise UsageError(
            f"names do not match: {'; '.join(wrong)}. Rename them, or leave them out; to move "
            "only some tensors, name those in out= and pass partial=True to a Resharder."
        )
