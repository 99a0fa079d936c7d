"""A Resharder whose model has other tensors by the time of a run: an error that names one, and
never the weights of before."""

from __future__ import annotations

import threading

import placement_scenarios as scenarios
import pytest
import tiny_models as tiny
import torch
from ranks import run_ranks, run_threads, thread_outcomes

from hybridengine import Communicator, Resharder, UsageError
from hybridengine.layouts.held import held_by
from hybridengine.resharding.origin import Origin

pytestmark = pytest.mark.python


def assigned(model: torch.nn.Module) -> None:
    model.load_state_dict({n: t + 1 for n, t in model.state_dict().items()}, assign=True)


def put(model: torch.nn.Module) -> None:
    model.bias = torch.nn.Parameter(torch.ones(4))


def removed(model: torch.nn.Module) -> None:
    model.bias = None


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (assigned, "weight"),
        (put, "bias"),
        (removed, "bias"),
        (lambda model: model.to(torch.bfloat16), "weight"),
        (lambda model: setattr(model.weight, "data", torch.ones(5, 3)), "weight"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_other_tensors_than_at_the_start(change, name, stream):
    after_the_first = threading.Barrier(2)

    def main(comm: Communicator) -> str:
        model = torch.nn.Linear(3, 4)
        resharder = Resharder(model, "replicated(2)", "fsdp2(2)", comm=comm)
        run = (lambda: resharder.stream(lambda *_: None)) if stream else resharder.run
        run()
        after_the_first.wait()
        change(model)
        with pytest.raises(UsageError, match="Make a new Resharder") as raised:
            run()
        assert comm.dead
        return str(raised.value)

    for text in run_threads(2, main, transport="loopback"):
        assert repr(name) in text


def test_a_rank_alone_that_has_other_tensors():
    """The others do not wait, and hear why."""

    def main(comm: Communicator) -> None:
        shards = {"weight": tiny.chunk(tiny.numbered(6, 2), 3, comm.rank)}
        resharder = Resharder(shards, "fsdp2(3)", "replicated(3)", comm=comm)
        if comm.rank == 1:
            shards["weight"] = shards["weight"] + 1
        resharder.run()

    outcomes = thread_outcomes(3, main, transport="loopback")
    assert outcomes[1][1] == "UsageError"
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome[1] == "TransportError" and "'weight' is another tensor" in outcome[2]


def test_a_dict_whose_tensor_was_replaced():
    given = {"a": torch.ones(2), "b": torch.ones(3)}
    origin = Origin(given, held_by(given))
    given["a"].mul_(2)
    given["a"].data = torch.zeros(2)
    origin.check()
    given["b"] = given["b"].view(3)  # another object, the same memory
    origin.check()
    given["b"] = given["b"].clone()
    with pytest.raises(UsageError, match="'b' is another tensor"):
        origin.check()


def test_what_may_change():
    """Values, places, what does not train, buffers that are not persistent."""
    model = torch.nn.BatchNorm1d(3)
    model.register_buffer("scratch", torch.ones(2), persistent=False)
    origin = Origin(model, held_by(model))
    model(torch.randn(4, 3)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    model.load_state_dict({n: t + 1 for n, t in model.state_dict().items()})
    model.weight.data = torch.ones(3)
    model.requires_grad_(False)
    model.scratch = torch.zeros(7)
    origin.check()


def test_sharded_modules(tmp_path):
    """FSDP2: trained, unsharded, loaded and stepped is fine; converted or assigned is not."""
    for allowed, refused in run_ranks(2, scenarios.change_a_sharded_module, str(tmp_path)):
        assert allowed == ["trained", "unsharded", "loaded"]
        assert set(refused) == {"converted", "assigned"}
        for text in refused.values():
            assert "is another tensor than when the Resharder was made" in text


def test_storage_that_was_freed():
    after_the_first = threading.Barrier(2)

    def main(comm: Communicator) -> None:
        full = tiny.numbered(6, 2)
        mine = {"v": torch.ones(2), "w": tiny.chunk(full, 2, comm.rank)}
        src = {"v": mine["v"][comm.rank : comm.rank + 1].clone(), "w": mine["w"].clone()}
        resharder = Resharder(src, "fsdp2(2)", "replicated(2)", comm=comm)
        resharder.run()
        after_the_first.wait()
        if comm.rank == 0:
            src["w"].untyped_storage().resize_(0)
        resharder.run()

    outcomes = thread_outcomes(2, main, transport="loopback")
    assert outcomes[0][1] == "UsageError" and "'w': " in outcomes[0][2]
    assert outcomes[1][1] == "TransportError" and "'w': " in outcomes[1][2]
