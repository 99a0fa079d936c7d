"""What callers of TwoStep get wrong: optimizers, arguments, gradients. Every rank raises."""

from __future__ import annotations

import math

import pytest
import tiny_models as tiny
import torch
from two_step_scenarios import OPTIMIZERS, Net, give, on_two

from hybridengine import Communicator, TwoStep, UsageError
from hybridengine.two_step.optimizers import prove_element_wise

pytestmark = pytest.mark.python

SGD = OPTIMIZERS["sgd"]
GEN = "replicated(2)"


@pytest.mark.parametrize(
    ("name", "factory"),
    [
        ("LBFGS", torch.optim.LBFGS),
        ("Adafactor", torch.optim.Adafactor),
        ("Muon", lambda params: torch.optim.Muon(params)),
        ("SparseAdam", torch.optim.SparseAdam),
        ("NormedSGD", lambda params: NormedSGD(params, lr=0.1)),
        ("NoneType", lambda params: None),
        ("MovingSGD .*other memory", lambda params: MovingSGD(params, lr=0.1)),
    ],
)
def test_optimizers_that_need_whole_tensors(name, factory):
    with pytest.raises(UsageError, match=name):
        prove_element_wise(factory)


class NormedSGD(torch.optim.SGD):
    """Scales each tensor's step by the tensor's norm, as LARS does."""

    def step(self, closure=None):
        for each in self.param_groups[0]["params"]:
            each.grad.div_(each.grad.norm())
        return super().step(closure)


class MovingSGD(torch.optim.SGD):
    """Writes into new memory."""

    def step(self, closure=None):
        for each in self.param_groups[0]["params"]:
            each.data = each.data - each.grad


@pytest.mark.parametrize(
    "factory",
    [
        *OPTIMIZERS.values(),
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
        lambda params: torch.optim.NAdam(params),
        lambda params: torch.optim.RMSprop(params, momentum=0.9),
        lambda params: torch.optim.Adagrad(params),
    ],
)
def test_element_wise_optimizers(factory):
    prove_element_wise(factory)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_norm": 0.0}, "max_norm=0.0"),
        ({"max_norm": math.nan}, "max_norm=nan"),
        ({"grad_op": "max"}, "grad_op='max'"),
        ({"factory": torch.optim.LBFGS}, "LBFGS"),
        ({"train_layout": "replicated(3)"}, "rank 2"),
        ({"gen": "vllm(tp=2)"}, "config"),
        ({"freeze": True}, "no parameter trains"),
        ({"double": True}, "float64"),
    ],
)
def test_wrong_arguments(options, match):
    """On both ranks, also where only one of them is wrong where ranks may differ."""

    def main(comm: Communicator) -> None:
        given = dict(options)
        net = Net()
        if given.pop("freeze", False):
            net.requires_grad_(False)
        if given.pop("double", False):
            net.double()
        factory, gen = given.pop("factory", SGD), given.pop("gen", GEN)
        with pytest.raises(UsageError, match=match):
            TwoStep(net, factory, gen, comm=comm, **given)

    on_two(main)


def test_ranks_that_differ():
    def main(comm: Communicator) -> None:
        net = Net()
        net.scale.requires_grad_(comm.rank == 0)
        with pytest.raises(UsageError, match="'scale' trains on rank 0 and not on rank 1"):
            TwoStep(net, SGD, GEN, comm=comm)
        with pytest.raises(UsageError, match="rank 1: grad_op"):
            TwoStep(Net(), SGD, GEN, comm=comm, grad_op="sum" if comm.rank == 0 else "or")

    on_two(main)


def test_a_gradient_on_some_ranks_only():
    def main(comm: Communicator) -> None:
        net = Net()
        two_step = TwoStep(net, SGD, GEN, comm=comm)
        before = {name: each.clone() for name, each in net.state_dict().items()}
        give(net, 1.0, "inner.weight", *(["scale"] if comm.rank == 1 else []))
        with pytest.raises(UsageError, match="'scale' has a gradient on rank 1 and none on"):
            two_step.step()
        tiny.assert_same(dict(net.state_dict()), before)
        give(net, 1.0, "inner.weight", "scale")
        two_step.step()  # and the next call works
        assert net.scale.item() == pytest.approx(3.3)

    on_two(main)


@pytest.mark.parametrize("wrong", ["frozen", "dtype"])
def test_gradients_that_do_not_fit(wrong):
    def main(comm: Communicator) -> None:
        net = Net()
        two_step = TwoStep(net, SGD, GEN, comm=comm)
        give(net, 1.0, "inner.weight", "scale")
        if comm.rank == 1 and wrong == "frozen":
            net.inner.bias.grad = torch.ones(3)
        if comm.rank == 1 and wrong == "dtype":
            net.inner.weight.grad_dtype = None
            net.inner.weight.grad = torch.ones(3, 5, dtype=torch.float64)
        name = {"frozen": "inner.bias", "dtype": "inner.weight"}[wrong]
        with pytest.raises(UsageError, match=f"rank 1: .*{name}"):
            two_step.step()
        assert net.scale.item() == 3.5

    on_two(main)
