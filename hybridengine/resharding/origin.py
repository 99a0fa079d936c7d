"""origin: where the tensors that a Resharder keeps came from, to tell whether they are still there.

A Resharder reads the tensors that it found when it was made. A module that has others since then
(load_state_dict(assign=True), .to(dtype) of a sharded module) would go on giving the old weights
without a word. What a tensor holds may change, and where it holds it (.data), as optimizers and
offloading do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import hybridengine.tensors as memory
from hybridengine._core import UsageError
from hybridengine.layouts.held import Held, held_by, slots_of


class _Slot(NamedTuple):
    """A place for a tensor in a table of a module, or in a dict, and what was in it."""

    table: Any
    key: str
    tensor: Any
    local: Any  # a DTensor may get other memory and stay the same object; None: it is none


class Origin:
    """A model as it was read."""

    def __init__(self, model: Any, held: Held) -> None:
        self._model, self._held = model, held
        self._slots = [
            _Slot(*each, getattr(each[2], "_local_tensor", None))
            for each in slots_of(model, buffers=held.buffers)
        ]

    def check(self) -> None:
        """Throws UsageError, naming the tensor, where one is another object than it was and lies
        elsewhere. Takes some 0.1 us a tensor; shapes and types are the core's to check."""
        for table, key, tensor, local in self._slots:
            if table.get(key) is not tensor or (
                local is not None and tensor._local_tensor is not local
            ):
                self.compare()
                return

    def compare(self) -> None:
        """As check(), by reading the model again: what looks different may be the same, as where
        FSDP2 keeps a module unsharded between passes."""
        found = held_by(self._model, buffers=self._held.buffers)
        tensors = found.tensors | {alias: found.tensors[name] for alias, name in found.aliases}
        now = {name: (shape, dtype) for name, shape, dtype in found.rows}
        now |= {alias: now[name] for alias, name in found.aliases}
        for name, shape, dtype in self._held.rows:
            if name not in now:
                raise UsageError(
                    f"{name!r} is gone from the model. Make a new Resharder of what it has now."
                )
            kept = self._held.tensors[name]
            if now[name] != (shape, dtype) or not memory.same_place(tensors[name], kept):
                raise UsageError(
                    f"{name!r} is another tensor than when the Resharder was made, as after "
                    "load_state_dict(assign=True) or .to(dtype): it would move what was there "
                    "before. Make a new Resharder."
                )
