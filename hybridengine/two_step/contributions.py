"""contributions: what autograd left on this rank, reduced into the pieces that ranks own.

Step one of a two-step update. Gradients are read where they lie; those of parameters without one on
any rank count as absent, and one that only some ranks have is an error on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import hybridengine.tensors as memory
from hybridengine._core import UsageError
from hybridengine.agreement import agree
from hybridengine.comm import Communicator
from hybridengine.layouts.held import held_by
from hybridengine.layouts.layout import Layout
from hybridengine.resharding.report import Report
from hybridengine.resharding.resharder import Resharder


class Contributions:
    """`parameters` by their local names in `train`; `summed` is the layout of those gradients that
    are summands, `pieces` the tensors of this rank in `owners`."""

    def __init__(
        self,
        parameters: Mapping[str, Any],
        frozen: Mapping[str, Any],
        summed: Layout,
        owners: Layout,
        op: str,
        comm: Communicator,
    ) -> None:
        self._parameters, self._frozen, self._comm = parameters, frozen, comm
        rows = summed.locals(comm.rank)
        # Tensors without content: at each step they get the storage of the gradients.
        self._slots = {name: memory.allocate(shape, dtype) for name, shape, dtype in rows}
        self._dtypes = {name: dtype for name, _, dtype in rows}
        self.pieces = {
            n: memory.allocate(shape, dtype) for n, shape, dtype in owners.locals(comm.rank)
        }
        self._member = comm.rank in summed.ranks
        self._resharder = Resharder(
            self._slots if self._member else None,
            summed.partial(op),
            owners,
            comm=comm,
            out=self.pieces,
        )
        self._release()

    def reduce(self) -> list[str]:
        """Fills the pieces. Returns the local names of the parameters that have no gradient on any
        rank; their pieces are zero.

        Throws UsageError on every rank, and changes nothing, where a gradient is missing on some
        ranks only or does not fit.
        """
        absent = agree(self._comm, self._take, _absent_everywhere)
        self._resharder.run()
        self._release()
        return absent

    @property
    def report(self) -> Report:
        assert self._resharder.report is not None
        return self._resharder.report

    def _take(self) -> dict[str, Any]:
        """Gives the slots what autograd left. Says which parameters have no gradient here."""
        absent = sorted(name for name, each in self._parameters.items() if each.grad is None)
        for name, each in self._frozen.items():
            if each.grad is not None:
                raise UsageError(
                    f"{name!r} has a gradient but did not train when the TwoStep was made. Make a "
                    "new one after unfreezing."
                )
        for name, slot in self._slots.items():
            if name in absent:
                slot.data = slot.new_zeros(self._parameters[name].shape)
                continue
            gradient = self._parameters[name].grad
            local = held_by({name: gradient}).tensors[name]
            if memory.dtype_name(local.dtype) != self._dtypes[name]:
                raise UsageError(
                    f"the gradient of {name!r} is {memory.dtype_name(local.dtype)}, its parameter "
                    f"{self._dtypes[name]}. Keep gradients in the type of their parameters."
                )
            slot.data = local.contiguous()
        return {"absent": absent if self._member else None}

    def _release(self) -> None:
        for slot in self._slots.values():
            slot.data = slot.new_empty(0)


def _absent_everywhere(shown: list[Mapping[str, Any]]) -> list[str]:
    """The parameters without a gradient, which every rank that trains must have in common."""
    members = [
        (rank, set(each["absent"])) for rank, each in enumerate(shown) if each["absent"] is not None
    ]
    first, agreed = members[0]
    for rank, names in members:
        for name in sorted(names ^ agreed):
            off, on = (rank, first) if name in names else (first, rank)
            raise UsageError(
                f"{name!r} has a gradient on rank {on} and none on rank {off}. Give it one on "
                "every rank, zeros where the loss does not reach it, or on none."
            )
    return sorted(agreed)
