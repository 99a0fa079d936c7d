"""A TwoStep's life: what trains and what does not, norms that are not finite, saved state."""

from __future__ import annotations

import math

import pytest
import tiny_models as tiny
import torch
import two_step_scenarios as scenarios
from ranks import run_threads
from two_step_scenarios import OPTIMIZERS, Net, give, on_two

from hybridengine import Communicator, LayoutRule, Spec, TwoStep, UsageError

pytestmark = pytest.mark.python

SGD = OPTIMIZERS["sgd"]
GEN = "replicated(2)"


def test_what_does_not_train_is_moved_once():
    def main(comm: Communicator) -> None:
        net = Net()
        two_step = TwoStep(net, SGD, GEN, comm=comm)
        before = {name: each.clone() for name, each in net.state_dict().items()}
        tiny.assert_same(two_step.generation, before)
        give(net, 1.0 + comm.rank, "inner.weight", "scale")
        assert two_step.step() is None
        after = before | {
            name: torch.add(before[name], torch.full_like(before[name], 3.0), alpha=-0.1)
            for name in ("inner.weight", "scale")
        }
        tiny.assert_same(two_step.generation, after)
        tiny.assert_same(dict(net.state_dict()), after)
        assert [each.logical_name for each in two_step.optimizer.param_groups[0]["params"]] == [
            name for name, _, _ in two_step._owners.locals(comm.rank)
        ]

    on_two(main)


def test_a_parameter_without_gradient_on_every_rank_is_passed_over():
    """As in torch: no step, no decay, no momentum. The next step counts it in again."""

    def main(comm: Communicator) -> None:
        net = Net()
        start = net.inner.weight.detach().clone()
        two_step = TwoStep(net, OPTIMIZERS["adamw"], GEN, comm=comm, max_norm=10.0)
        give(net, 1.0, "scale")
        assert two_step.step() == 2.0
        assert net.inner.weight.equal(start) and two_step.generation["inner.weight"].equal(start)
        assert net.scale.item() != 3.5
        give(net, 1.0, "inner.weight")
        two_step.step()
        assert not net.inner.weight.equal(start)
        held = {each for each in two_step.optimizer.state}
        assert all(two_step.optimizer.state[each]["step"] == 1 for each in held)
        two_step.zero_grad()
        assert net.inner.weight.grad is None

    on_two(main)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_changes_nothing(value):
    """The same on every rank, also where only one has the bad gradient."""

    def main(comm: Communicator) -> None:
        net = Net()
        two_step = TwoStep(net, OPTIMIZERS["adamw"], GEN, comm=comm, max_norm=1.0)
        before = {name: each.clone() for name, each in net.state_dict().items()}
        give(net, value if comm.rank == 1 else 1.0, "inner.weight", "scale")
        assert not math.isfinite(two_step.step())
        assert two_step.report.step_two is None
        tiny.assert_same(two_step.generation, before)
        tiny.assert_same(dict(net.state_dict()), before)
        assert not two_step.optimizer.state
        give(net, 1.0, "inner.weight", "scale")
        assert two_step.step() == pytest.approx(2 * math.sqrt(16))

    on_two(main)


def test_gradients_that_are_not_contiguous():
    def main(comm: Communicator) -> None:
        net, other = Net(), Net()
        two_step, plain = (TwoStep(each, SGD, GEN, comm=comm) for each in (net, other))
        gradient = torch.arange(15.0).reshape(5, 3).t()
        give(net, 1.0, "scale")
        give(other, 1.0, "scale")
        net.inner.weight.grad = gradient
        other.inner.weight.grad = gradient.contiguous()
        two_step.step()
        plain.step()
        tiny.assert_same(dict(net.state_dict()), dict(other.state_dict()))

    on_two(main)


def test_parameters_that_are_not_contiguous():
    """What generation copies from them is found by index, not by address."""

    def main(comm: Communicator) -> None:
        params = {"w": torch.nn.Parameter(torch.arange(15.0).reshape(5, 3).t())}
        two_step = TwoStep(params, SGD, GEN, comm=comm)
        params["w"].grad = torch.ones(3, 5)
        two_step.step()
        expected = torch.arange(15.0).reshape(5, 3).t() - 0.1 * 2
        assert params["w"].equal(expected) and two_step.generation["w"].equal(expected)

    on_two(main)


def test_saved_state_goes_on_as_if_nothing_happened():
    """Also into a module with other weights: they come from the masters, to the last bit."""

    def main(comm: Communicator) -> None:
        first, second = Net(), Net()
        two_step = TwoStep(first.bfloat16(), OPTIMIZERS["adamw"], GEN, comm=comm)
        give(first, 1.0, "inner.weight", "scale")
        two_step.step()
        state = {key: each for key, each in two_step.state_dict().items()}
        state = torch.load(_saved(state))
        second.bfloat16().inner.weight.data.zero_()
        again = TwoStep(second, OPTIMIZERS["adamw"], GEN, comm=comm)
        again.load_state_dict(state)
        tiny.assert_same(dict(second.state_dict()), dict(first.state_dict()))
        for _ in range(2):
            for net, each in ((first, two_step), (second, again)):
                give(net, 0.5, "inner.weight", "scale")
                each.step()
        tiny.assert_same(again.generation, two_step.generation)
        tiny.assert_same(again.state_dict()["masters"], two_step.state_dict()["masters"])

    on_two(main)


def _saved(state: dict) -> object:
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_state_of_another_layout():
    def main(comm: Communicator) -> None:
        state = TwoStep(Net(), SGD, GEN, comm=comm).state_dict()
        other = TwoStep(Net(), SGD, "replicated(1)", comm=comm)
        with pytest.raises(UsageError, match="other pieces"):
            other.load_state_dict(state)

    on_two(main)


def test_refresh_takes_new_weights():
    def main(comm: Communicator) -> None:
        net = Net()
        two_step = TwoStep(net, SGD, GEN, comm=comm)
        with torch.no_grad():
            for each in net.state_dict().values():
                each.add_(1.0)
        two_step.refresh()
        tiny.assert_same(two_step.generation, dict(net.state_dict()))
        give(net, 0.0, "inner.weight", "scale")
        two_step.step()
        assert net.scale.item() == 4.5 and two_step.generation["mean"].tolist() == [2.0, 3.0]

    on_two(main)


def test_tensors_of_generation_stay_in_place():
    """An engine may keep them."""

    def main(comm: Communicator) -> None:
        net = Net()
        two_step = TwoStep(net, SGD, "replicated(1)", comm=comm)
        addresses = {name: each.data_ptr() for name, each in two_step.generation.items()}
        assert len(addresses) == (5 if comm.rank == 0 else 0)
        give(net, 1.0, "inner.weight", "scale")
        two_step.step()
        two_step.refresh()
        assert addresses == {n: each.data_ptr() for n, each in two_step.generation.items()}

    on_two(main)


def test_groups_of_parameters_by_name():
    """Weight decay for matrices only, also on a rank that owns nothing."""

    def factory(pieces: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        decayed = [each for each in pieces if each.logical_name.endswith("weight")]
        others = [each for each in pieces if not each.logical_name.endswith("weight")]
        groups = [{"params": decayed, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.SGD(groups, lr=0.5)

    def main(comm: Communicator) -> None:
        net = Net()
        start = net.inner.weight.detach().clone()
        two_step = TwoStep(net, factory, "replicated(1)", comm=comm)
        give(net, 0.0, "inner.weight", "scale")
        two_step.step()
        assert net.inner.weight.equal(start * 0.75) and net.scale.item() == 3.5

    on_two(main)


def test_one_rank_alone():
    def main(comm: Communicator) -> None:
        net = Net()
        two_step = TwoStep(net, SGD, "replicated(1)", comm=comm, max_norm=2.0)
        give(net, 1.0, "inner.weight", "scale")
        assert two_step.step() == 4.0
        assert net.scale.item() == pytest.approx(3.5 - 0.05)
        assert two_step.report.received_bytes == two_step.report.bound_bytes == 0

    run_threads(1, main, transport="loopback")


def test_a_fused_tensor_that_trains_in_part_elsewhere():
    """Only q_proj trains: the rest of the fused tensor keeps what was moved at the start."""
    spec = Spec.from_config(tiny.config("LlamaForCausalLM"))
    full = scenarios.random_tensors(spec, 0)
    name = "model.layers.0.self_attn.q_proj.weight"
    gen = LayoutRule.parse("vllm(tp=2)").bind(spec)

    def main(comm: Communicator) -> None:
        params = {key: torch.nn.Parameter(each.clone(), key == name) for key, each in full.items()}
        train = LayoutRule.parse("replicated(2)").bind(spec)
        two_step = TwoStep(params, SGD, gen, comm=comm, train_layout=train)
        params[name].grad = torch.ones_like(full[name])
        two_step.step()
        after = full | {name: full[name] - 0.1 * 2}
        tiny.assert_same(two_step.generation, scenarios.cut(after, gen, comm.rank))

    on_two(main)
