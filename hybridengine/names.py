"""Names: how the names that a caller uses meet the names that a layout uses.

A name is first tried as it is. Only then is it tried without the components that wrappers add
(data parallel, torch.compile, FSDP, activation checkpointing, peft), so a submodule that is really
called 'module' keeps its name. What matches nothing is an error, never skipped in silence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from hybridengine._core import UsageError

# Components that only wrappers add, and those that a model may well use itself.
_ALWAYS_WRAPPER = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer"}
)
_MAYBE_WRAPPER = frozenset({"module"})
_PEFT_PREFIX = "base_model.model."

_MAX_LISTED = 8


def template_of(name: str) -> str:
    """`name` with each component that is a number written as '*'."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def unwrapped(name: str) -> str:
    """`name` without any component that a wrapper may have added."""
    kept = name.removeprefix(_PEFT_PREFIX).split(".")
    return ".".join(
        part for part in kept if part not in _ALWAYS_WRAPPER and part not in _MAYBE_WRAPPER
    )


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


def check_matched(sources: Iterable[str], destinations: Iterable[str]) -> None:
    """Throws UsageError that lists the sources without destination and the other way round."""
    sources, destinations = list(sources), list(destinations)
    unsent = [name for name in sources if name not in set(destinations)]
    unfilled = [name for name in destinations if name not in set(sources)]
    if unsent or unfilled:
        raise UsageError(
            f"names do not match: {_listed(unsent)} in the source has no destination; "
            f"{_listed(unfilled)} in the destination received nothing. Rename them, or pass "
            "partial=True to a Resharder to move only what matches."
        )


def _listed(names: list[str]) -> str:
    if not names:
        return "nothing"
    shown = ", ".join(repr(name) for name in names[:_MAX_LISTED])
    more = len(names) - _MAX_LISTED
    return f"{shown} and {more} more" if more > 0 else shown
