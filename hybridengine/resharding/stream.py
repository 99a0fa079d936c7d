"""stream: destination tensors handed over one by one, so that nobody holds all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hybridengine.tensors as memory
from hybridengine import _core
from hybridengine.layouts.layout import Layout

# A stream hands tensors over in order: its buckets are this much smaller, so that staging and the
# tensors that are being filled stay within three buckets beside the largest tensor.
_SHARE = 4


class Stream:
    """The same plan in smaller buckets, in the order of the destination's tensors."""

    def __init__(self, plan: Any, schedule: Any, rank: int, dst: Layout, *, verify: bool) -> None:
        size = max(schedule.bucket_bytes // _SHARE, 16)
        in_order = _core.make_schedule(plan, rank, size, in_order=True)
        self.routine = _core.Routine(
            in_order, plan=in_order.digest(), verify=verify, open_bytes=2 * size
        )
        self._rows = dst.locals(rank)
        self._padded = set(dst.core.padded(rank))

    def hand_over(
        self,
        run: Any,
        aliases: Sequence[tuple[str, str]],
        on_tensor: Callable[[str, Any], None],
    ) -> None:
        """Goes on with a run of the routine to its end. Within a call."""
        seconds = _second_names(aliases)
        open_tensors: dict[int, Any] = {}
        while (event := run.advance())[0] != "done":
            kind, local = event
            name, shape, dtype = self._rows[local]
            if kind == "need":
                open_tensors[local] = memory.allocate(shape, dtype, zeroed=name in self._padded)
                run.provide(local, open_tensors[local])
                continue
            tensor = open_tensors.pop(local)
            run.release(local)
            for each in (name, *seconds.get(name, ())):
                on_tensor(each, tensor)
            del tensor  # the callee's alone, before memory for the next is made


def _second_names(aliases: Sequence[tuple[str, str]]) -> Mapping[str, list[str]]:
    """Of tied tensors, by their first."""
    seconds: dict[str, list[str]] = {}
    for alias, name in aliases:
        seconds.setdefault(name, []).append(alias)
    return seconds
