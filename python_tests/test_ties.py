"""Tied weights: one tensor under two names moves once and stays one; a lost tie is named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny_models as tiny
import torch
from ranks import run_threads

from hybridengine import Communicator, Resharder, Spec, UsageError, reshard

pytestmark = pytest.mark.threads


@pytest.fixture(params=["loopback", "shm", "cma"])
def transport(request) -> str:
    return request.param


class Tied(torch.nn.Module):
    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.A = torch.nn.Linear(3, 4, bias=False, device=device)
        self.B = torch.nn.Linear(3, 4, bias=False, device=device)
        self.B.weight = self.A.weight


def test_tied_weights_move_once_and_stay_tied(transport):
    """B13: 12 elements, not 24; one storage before and after; B sees what is added to A."""
    with torch.device("meta"):
        model = Tied()
    model = model.to_empty(device="cpu")
    model.B.weight = model.A.weight
    model.A.weight.data.copy_(tiny.numbered(4, 3))

    def main(comm: Communicator) -> int:
        held = model if comm.rank == 0 else None
        resharder = Resharder(held, "hf", "replicated(2)", comm=comm)
        got = resharder.run()
        assert sorted(got) == ["A.weight", "B.weight"]
        assert got["A.weight"].data_ptr() == got["B.weight"].data_ptr()
        got["A.weight"].add_(1)
        assert got["B.weight"].equal(tiny.numbered(4, 3) + 1)
        seen: list = []
        resharder.stream(lambda name, tensor: seen.append((name, tensor.data_ptr())))
        assert [name for name, _ in seen] == ["A.weight", "B.weight"]
        assert seen[0][1] == seen[1][1]
        return resharder.report.received_bytes

    assert run_threads(2, main, transport=transport) == [0, 48]


class TiedDecoder(torch.nn.Module):
    """What transformers makes of a config that ties the head, with nothing between the two."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.config = SimpleNamespace(to_dict=lambda: tiny.config(layers=1, tie=True))
        spec = Spec.from_config(self.config)
        for name, shape, _ in [*spec.tensors, ("lm_head.weight", (7, 8), "")]:
            self._add(name, torch.nn.Parameter(torch.empty(shape, device=device)))
        self.tie_weights()

    def _add(self, name: str, parameter: torch.nn.Parameter) -> None:
        at: torch.nn.Module = self
        *path, leaf = name.split(".")
        for part in path:
            if part not in at._modules:
                at.add_module(part, torch.nn.Module())
            at = at._modules[part]
        at.register_parameter(leaf, parameter)

    def tie_weights(self) -> None:
        self.lm_head.weight = self.model.embed_tokens.weight


@pytest.mark.parametrize("dst", ["replicated(2)", "vllm(tp=2)"])
def test_a_tie_that_was_lost_is_named(dst):
    """B13: made module by module, each user of a shared weight has storage of its own."""
    model = TiedDecoder("meta")
    for module in model.modules():
        module.to_empty(device="cpu", recurse=False)
    assert model.lm_head.weight is not model.model.embed_tokens.weight

    def main(comm: Communicator) -> str:
        held = model if comm.rank == 0 else None
        with pytest.raises(UsageError) as raised:
            reshard(held, "hf", dst, comm=comm)
        return str(raised.value)

    for text in run_threads(2, main, transport="loopback"):
        assert text.startswith(
            "'lm_head.weight' has memory of its own, but the config ties it to "
            "'model.embed_tokens.weight'. "
        )
        assert "model.tie_weights() joins them" in text
    model.tie_weights()
    with torch.no_grad():
        model.lm_head.weight.copy_(tiny.numbered(7, 8))

    def move(comm: Communicator) -> int:
        resharder = Resharder(model if comm.rank == 0 else None, "hf", "replicated(2)", comm=comm)
        got = resharder.run()
        assert got["lm_head.weight"] is got["model.embed_tokens.weight"]
        assert got["lm_head.weight"].equal(tiny.numbered(7, 8))
        return resharder.report.received_bytes

    whole = Spec.from_config(model.config).num_bytes
    assert run_threads(2, move, transport="loopback") == [0, whole]


def test_ties_are_seen_through_wrappers():
    """The second name of a tied tensor is unwrapped as the first is."""
    one = tiny.numbered(4, 3)
    names = ("base_model.model.A.weight", "base_model.model.B.weight")

    def main(comm: Communicator) -> bool:
        held = dict.fromkeys(names, one) if comm.rank == 0 else None
        target = torch.zeros(4, 3)
        out = {"A.weight": target, "B.weight": target}
        reshard(held, "hf", "replicated(2)", comm=comm, out=out)
        return bool(target.equal(one))

    assert run_threads(2, main, transport="loopback") == [True, True]


def test_ties_of_shards_some_of_which_are_empty(transport):
    """A rank without rows cannot see by memory that two names are one tensor."""

    def main(comm: Communicator) -> tuple[int, list[str]]:
        shard = tiny.chunk(tiny.numbered(4, 3), 6, comm.rank)
        second = shard if shard.numel() else torch.empty(0, 3)
        resharder = Resharder({"A": shard, "B": second}, "fsdp2(6)", "hf", comm=comm)
        got = resharder.run()
        if comm.rank == 0:
            assert got["A"].equal(tiny.numbered(4, 3)) and got["B"] is got["A"]
        return resharder.report.received_bytes, sorted(got)

    assert run_threads(6, main, transport=transport) == [(36, ["A", "B"])] + [(0, [])] * 5


def test_ties_under_other_first_names(transport):
    """Dicts come in different orders, so ranks meet the two names the other way round."""

    def main(comm: Communicator) -> list[str]:
        shard = tiny.chunk(tiny.numbered(4, 3), 2, comm.rank)
        names = ["A", "B", "C"] if comm.rank == 0 else ["C", "B", "A"]
        got = reshard(dict.fromkeys(names, shard), "fsdp2(2)", "replicated(2)", comm=comm)
        assert got["A"] is got["B"] is got["C"] and got["A"].equal(tiny.numbered(4, 3))
        seen: dict = {}
        shards = dict.fromkeys(names, shard)
        Resharder(shards, "fsdp2(2)", "hf", comm=comm).stream(seen.__setitem__)
        assert sorted(seen) == (["A", "B", "C"] if comm.rank == 0 else [])
        return sorted(got)

    assert run_threads(2, main, transport=transport) == [["A", "B", "C"]] * 2


def test_ties_that_ranks_see_differently_are_an_error():
    def main(comm: Communicator) -> str:
        shard = torch.ones(2, 3)
        second = shard if comm.rank == 0 else shard.clone()
        with pytest.raises(UsageError) as raised:
            reshard({"A": shard, "B": second}, "fsdp2(2)", "hf", comm=comm)
        return str(raised.value)

    for text in run_threads(2, main, transport="loopback"):
        assert "'B' shares the memory of 'A' on rank 0 and not on rank 1" in text


def test_tied_tensors_of_out(transport):
    def main(comm: Communicator, apart: bool) -> str:
        held = Tied() if comm.rank == 0 else None
        one = torch.zeros(4, 3)
        out = {"A.weight": one, "B.weight": one.clone() if apart else one}
        try:
            reshard(held, "hf", "replicated(2)", comm=comm, out=out)
        except UsageError as error:
            return str(error)
        return "written" if one.any() else ""

    assert run_threads(2, main, False, transport=transport) == ["written"] * 2
    for text in run_threads(2, main, True, transport=transport):
        assert "'B.weight' has memory of its own, but it is tied to 'A.weight'" in text


def test_a_parameter_on_meta_is_named():
    """B13, second run"""
    for model, name in ((Tied("meta"), "A.weight"), ({"w": torch.empty(2, device="meta")}, "w")):

        def main(comm: Communicator, model=model) -> str:
            with pytest.raises(UsageError) as raised:
                reshard(model, "hf", "hf", comm=comm)
            return str(raised.value)

        assert f"'{name}' is on the meta device" in run_threads(1, main, transport="loopback")[0]
