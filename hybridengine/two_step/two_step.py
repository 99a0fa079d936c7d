"""two_step: an optimizer step and the reshard to generation as two movements.

Step one reduces gradients so that each rank receives only what it owns: a part of its generation
boxes. The optimizer runs on what the rank owns, in float32. Step two sends the new values to where
training and generation need them. The optimizer's own gather and the reshard are one movement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.agreement import check_everywhere
from hybridengine.comm import Communicator
from hybridengine.layouts.held import held_by
from hybridengine.layouts.layout import Layout
from hybridengine.layouts.names import canonical_names
from hybridengine.layouts.placements import is_distributed
from hybridengine.layouts.planning import LayoutLike, as_rule
from hybridengine.layouts.wrappers import inside
from hybridengine.options import callable_
from hybridengine.resharding.arguments import communicator_for
from hybridengine.resharding.report import Report
from hybridengine.resharding.resharder import Resharder
from hybridengine.two_step.clipping import clip, global_norm
from hybridengine.two_step.contributions import Contributions
from hybridengine.two_step.optimizers import Masters, OptimizerFactory, prove_element_wise
from hybridengine.two_step.ownership import agree_on_trained, owners_for
from hybridengine.two_step.update import Update
from hybridengine.wording import counted, kind_of

_GRAD_OPS = ("sum", "mean")
_SHARDED_MODULES = {"FSDPModule", "FullyShardedDataParallel"}


@dataclass(frozen=True, repr=False)
class StepReport:
    """One step on this rank. `step_two` is None where the norm was not finite."""

    norm: float | None
    step_one: Report
    step_two: Report | None

    @property
    def received_bytes(self) -> int:
        return self._sum("received_bytes")

    @property
    def bound_bytes(self) -> int:
        """What had to arrive at least in both steps."""
        return self._sum("bound_bytes")

    def __repr__(self) -> str:
        norm = "" if self.norm is None else f", norm {self.norm:.4g}"
        moved = f"received {self.received_bytes} of {self.bound_bytes} bytes bound"
        skipped = ", nothing changed" if self.step_two is None else ""
        return f"StepReport({moved}{norm}{skipped})"

    def _sum(self, field: str) -> int:
        return sum(getattr(each, field) for each in (self.step_one, self.step_two) if each)


class TwoStep:
    """Trains a module whose gradients are local, and keeps generation's tensors up to date.

    Making one is collective, and so are step(), refresh() and load_state_dict().
    `generation` has this rank's generation tensors by name; step() writes into them. `optimizer`
    is the one that the factory made, for learning rate schedulers.
    """

    def __init__(
        self,
        module: Any,
        optimizer_factory: OptimizerFactory,
        gen_layout: LayoutLike,
        *,
        comm: Communicator | None = None,
        max_norm: float | None = None,
        train_layout: LayoutLike | None = None,
        grad_op: str = "sum",
        dtype: Any = None,
    ) -> None:
        """`module`: a module (also inside DDP, when backward ran within no_sync()), or a dict of
        parameters; None on ranks outside of `train_layout` (default: as its DTensors say, or
        everything whole on every rank). `gen_layout`: as the destination of reshard(), and `dtype`
        converts for it. `optimizer_factory` makes an element-wise optimizer from a list of 1-d
        float32 parameters; each has a `logical_name`. `max_norm` clips the norm of all gradients.
        `grad_op`: "sum" or "mean" over data parallel ranks.

        Throws UsageError, on every rank, on modules sharded by FSDP, optimizers that are not
        element-wise, layouts that do not fit, or where nothing trains.
        """
        self.comm = communicator_for(comm, "auto")
        self.max_norm = max_norm
        self.report: StepReport | None = None
        self._module = module

        def check() -> None:
            nonlocal train_layout
            self._module = _inner(module)
            if train_layout is None:
                train_layout = self._found_layout()
            _check_options(max_norm, grad_op)
            callable_("optimizer_factory", optimizer_factory)
            as_rule(gen_layout, "gen_layout")
            as_rule(train_layout, "train_layout")
            prove_element_wise(optimizer_factory)

        check_everywhere(self.comm, check)
        assert train_layout is not None, "found above"
        loader = Resharder(self._module, train_layout, gen_layout, comm=self.comm, dtype=dtype)
        self.generation = loader.run()
        self._train, self._gen = loader.src, loader.dst
        self._take_parameters()
        self._make_pieces(grad_op)
        check_everywhere(self.comm, lambda: self._make_optimizer(optimizer_factory))

    def _make_optimizer(self, factory: OptimizerFactory) -> None:
        self.optimizer = self._masters.make_optimizer(factory)

    def _found_layout(self) -> LayoutLike:
        """As the module's DTensors say, which know all ranks; else everything is whole."""
        named = {} if self._module is None else _named(self._module)
        if any(map(is_distributed, named.values())):
            return Layout.of(self._module)
        return Layout.replicated(self.comm.world)

    def _take_parameters(self) -> None:
        """What trains on this rank, by the local names of the training layout."""
        rank = self.comm.rank
        names = [name for name, _, _ in self._train.locals(rank)]
        named = {} if self._module is None else _named(self._module)
        held = held_by(self._module).tensors if named else {}
        match = canonical_names(held, names)
        self._training = {match[name]: tensor for name, tensor in held.items()}
        owners = {match[name]: named[name] for name in held}
        self._parameters = {n: each for n, each in owners.items() if each.requires_grad}
        self._frozen = {n: each for n, each in owners.items() if not each.requires_grad}

    def _make_pieces(self, grad_op: str) -> None:
        rank, comm = self.comm.rank, self.comm
        trained = agree_on_trained(comm, self._train, sorted(self._parameters))
        train, gen = (
            Layout(_core.select_tensors(each.core, trained)) for each in (self._train, self._gen)
        )
        alone = _core.without_copies(self._train.core)
        summed = Layout(_core.select_tensors(alone, trained))
        self._owners = owners_for(train, gen)
        self._masters = Masters(self._owners.locals(rank))
        used = {name: self._training[name] for name, _, _ in train.locals(rank)}
        self._load = Resharder(
            used if rank in train.ranks else None,
            train,
            self._owners,
            comm=comm,
            out=self._masters.tensors,
        )
        self._load.run()
        self._gradients = Contributions(
            self._parameters, self._frozen, summed, self._owners, grad_op, comm
        )
        self._update = Update(
            self._masters.tensors, used, self.generation, (self._owners, train, gen), comm
        )
        self._tensors_of: dict[str, list[str]] = {}
        for tensor, local, *_ in train.pieces(train.ranks[0]):
            self._tensors_of.setdefault(local, []).append(tensor)

    def step(self) -> float | None:
        """Reduces the gradients, clips, steps the optimizer and moves the new values. Returns the
        norm before clipping, None without `max_norm`.

        Where the norm is not finite nothing is changed. Parameters without a gradient on every rank
        are passed over, as an optimizer of torch does. Throws UsageError on every rank where only
        some ranks have one.
        """
        absent = self._gradients.reduce()
        with self.comm.between_calls():
            self._give_gradients(absent)
        norm = None
        if self.max_norm is not None:
            pieces = list(self._gradients.pieces.values())
            norm = global_norm(self.comm, pieces)
            if not math.isfinite(norm):
                self.report = StepReport(norm, self._gradients.report, None)
                return norm
            clip(pieces, norm, self.max_norm)
        with self.comm.between_calls():
            self.optimizer.step()
        self._update.run()
        self.report = StepReport(norm, self._gradients.report, self._update.report)
        return norm

    def _give_gradients(self, absent: list[str]) -> None:
        without = {tensor for local in absent for tensor in self._tensors_of.get(local, [])}
        self._masters.give(self._gradients.pieces, without)

    def __repr__(self) -> str:
        route = f"{self._train.text!r} -> {self._gen.text!r}"
        trained = counted(len(self._parameters), "parameter")
        return f"TwoStep({route}, {trained}, rank {self.comm.rank} of {self.comm.world})"

    def zero_grad(self) -> None:
        """Drops the gradients of the module's parameters."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def refresh(self) -> None:
        """Takes the module's weights as they are now, as after loading a checkpoint into it, also
        those that do not train."""
        Resharder(
            self._module, self._train, self._gen, comm=self.comm, out=self._generation_out()
        ).run()
        self._load.run()

    def _generation_out(self) -> dict[str, Any]:
        return {name: self.generation[name] for name, _, _ in self._gen.locals(self.comm.rank)}

    def state_dict(self) -> dict[str, Any]:
        """This rank's pieces and the state of its optimizer. Tensors are not copied."""
        return {
            "owners": self._owners.core.digest(),
            "masters": dict(self._masters.tensors),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What state_dict() gave on this rank, for the same model, layouts and world. Training and
        generation get the weights in it. Throws UsageError, on every rank, where it does not fit.
        """
        check_everywhere(self.comm, lambda: self._check_state(state))
        with self.comm.between_calls():
            for name, master in self._masters.tensors.items():
                master.copy_(state["masters"][name])
            self.optimizer.load_state_dict(state["optimizer"])
        self._update.run()

    def _check_state(self, state: Any) -> None:
        if not isinstance(state, Mapping):
            raise UsageError(
                f"state is {kind_of(state)}. Pass what state_dict() gave on this rank."
            )
        if state.get("owners") != self._owners.core.digest():
            raise UsageError(
                "this state belongs to other pieces: the model, the layouts or the number of "
                "ranks changed, or it is another rank's. Load it where it was saved."
            )


def _inner(module: Any) -> Any:
    """The module in its wrappers. Throws UsageError on one that FSDP has sharded."""
    module = inside(module)
    for name, each in module.named_modules() if hasattr(module, "named_modules") else ():
        kinds = {kind.__name__ for kind in type(each).__mro__}
        if kinds & _SHARDED_MODULES:
            raise UsageError(
                f"{name or 'the module'!r} is sharded by FSDP, which reduces gradients by itself. "
                "TwoStep takes plain or tensor parallel modules; FSDP2 comes later, through "
                "FSDPModule.set_custom_reduce_scatter."
            )
    return module


def _named(module: Any) -> dict[str, Any]:
    if hasattr(module, "state_dict"):
        return dict(module.state_dict(keep_vars=True))
    return dict(module)


def _check_options(max_norm: float | None, grad_op: str) -> None:
    number = isinstance(max_norm, (int, float)) and not isinstance(max_norm, bool)
    if max_norm is not None and not (number and max_norm > 0):
        raise UsageError(f"max_norm={max_norm!r} is not above 0. Leave it out not to clip.")
    if grad_op not in _GRAD_OPS:
        raise UsageError(f"grad_op={grad_op!r} is none. Use {' or '.join(_GRAD_OPS)}.")
