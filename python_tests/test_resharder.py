"""A Resharder's life: many runs, streams, views, partial updates; and plan() alone."""

from __future__ import annotations

import threading
import weakref
from types import SimpleNamespace

import pytest
import tiny_models as tiny
import torch
from ranks import run_threads

import hybridengine
import hybridengine.tensors as memory
from hybridengine import Communicator, Layout, Resharder, Spec, UsageError, reshard

pytestmark = pytest.mark.threads


@pytest.fixture(params=["loopback", "shm", "cma"])
def transport(request) -> str:
    return request.param


def test_every_run_moves_the_weights_as_they_are_now(transport):
    full = {"w": torch.randn(7, 3), "b": torch.randn(5)}

    def main(comm: Communicator) -> None:
        mine = tiny.fsdp2(full, 2, comm.rank)
        resharder = (
            Resharder(mine, "fsdp2(2)", "replicated(3)", comm=comm, bucket_bytes=32)
            if (comm.rank < 2)
            else Resharder(None, "fsdp2(2)", "replicated(3)", comm=comm, bucket_bytes=32)
        )
        kept = resharder.run()
        for step in range(1, 6):
            for tensor in mine.values():
                tensor.add_(step)
            expected = {name: tensor + step * (step + 1) / 2 for name, tensor in full.items()}
            got = resharder.run()
            for name, tensor in expected.items():
                assert torch.allclose(got[name], tensor, atol=1e-5)
            assert resharder.report.received_over_bound == 1.0
        tiny.assert_same(kept, full)  # memory of earlier runs is the caller's

    run_threads(3, main, transport=transport)


def test_a_parameter_that_gets_other_storage(transport):
    """As optimizers and offloading do: the next run reads the new one."""

    def main(comm: Communicator) -> None:
        model = torch.nn.Linear(3, 2)
        resharder = Resharder(model, "replicated(2)", "fsdp2(2)", comm=comm)
        resharder.run()
        for value in (4.0, 5.0):
            model.weight.data = torch.full((2, 3), value)
            assert resharder.run()["weight"].eq(value).all()

    run_threads(2, main, transport=transport)


@pytest.mark.parametrize("bucket_bytes", [64, 1000, 32 << 20])
def test_stream_hands_over_every_tensor_in_order(transport, bucket_bytes):
    spec = Spec.from_config(tiny.config(layers=3, heads=4, vocab=70))
    full = tiny.weights(spec)

    def main(comm: Communicator) -> list[str]:
        mine = tiny.fsdp2(full, 2, comm.rank)
        resharder = Resharder(
            mine, Layout.fsdp2(2).bind(spec), "vllm(tp=2)", comm=comm, bucket_bytes=bucket_bytes
        )
        for _ in range(2):
            seen: dict = {}
            resharder.stream(seen.__setitem__)
            tiny.assert_same(seen, tiny.vllm(full, tiny.config(layers=3, vocab=70), 2, comm.rank))
        assert list(seen) == [name for name, _, _ in resharder.dst.locals(comm.rank)]
        tiny.assert_same(resharder.run(), seen)  # both ways live side by side
        return list(seen)

    run_threads(2, main, transport=transport)


@pytest.mark.parametrize("dst", ["replicated(2)", "fsdp2(2)"], ids=["mixed", "all local"])
def test_stream_holds_only_a_little_at_a_time(monkeypatch, dst):
    """Three buckets and the largest tensor: staging and what is being filled, together."""
    full = {f"w{i}": torch.randn(100, 100) for i in range(40)} | {"small": torch.randn(3)}
    bucket_bytes, largest_bytes = 1 << 16, 40_000
    most_open: dict[int, int] = {}
    open_tensors: dict[int, weakref.WeakSet] = {}
    allocate = memory.allocate

    def watch(*args, **options) -> torch.Tensor:
        tensor, thread = allocate(*args, **options), threading.get_ident()
        mine = open_tensors.setdefault(thread, weakref.WeakSet())
        mine.add(tensor)
        most_open[thread] = max(most_open.get(thread, 0), sum(t.nbytes for t in mine))
        return tensor

    def main(comm: Communicator) -> int:
        mine = tiny.fsdp2(full, 2, comm.rank)
        resharder = Resharder(mine, "fsdp2(2)", dst, comm=comm, bucket_bytes=bucket_bytes)
        expected = mine if dst == "fsdp2(2)" else full
        handed = []

        def take(name: str, tensor: torch.Tensor) -> None:
            handed.append(name)
            assert tensor.equal(expected[name])

        resharder.stream(take)
        assert handed == list(full)
        return resharder.report.staging_bytes + most_open[threading.get_ident()]

    monkeypatch.setattr(memory, "allocate", watch)
    for held_bytes in run_threads(2, main, transport="shm"):
        assert held_bytes <= 3 * bucket_bytes + largest_bytes


def test_stream_and_out_do_not_go_together():
    def main(comm: Communicator) -> str:
        w = torch.zeros(2)
        out = {"w": torch.zeros(2)} if comm.rank == 1 else None
        resharder = Resharder({"w": w}, "replicated(2)", "replicated(2)", comm=comm, out=out)
        with pytest.raises(UsageError, match=r"stream\(\) hands tensors over"):
            resharder.stream(print)
        return "usable" if resharder.run() else ""

    assert run_threads(2, main, transport="loopback") == ["usable"] * 2


def test_views_share_storage_and_are_reported(transport):
    """alias=True: what lies whole in a source tensor of this rank costs nothing."""
    full = {"w": tiny.numbered(4, 6), "b": tiny.numbered(3)}

    def main(comm: Communicator) -> list[str]:
        mine = {name: tensor.clone() for name, tensor in full.items()}
        resharder = (
            Resharder(mine, "replicated(2)", "fsdp2(3)", comm=comm, alias=True)
            if (comm.rank < 2)
            else Resharder(None, "replicated(2)", "fsdp2(3)", comm=comm, alias=True)
        )
        got = resharder.run()
        tiny.assert_same(got, tiny.fsdp2(full, 3, comm.rank))
        report = resharder.report
        if comm.rank < 2:
            for name in got:
                assert got[name].untyped_storage().data_ptr() == (
                    mine[name].untyped_storage().data_ptr()
                )
            assert report.local_bytes == report.received_bytes == 0
            mine["w"].add_(1)
            assert resharder.run()["w"].equal(tiny.chunk(full["w"] + 1, 3, comm.rank))
        else:
            resharder.run()
        return report.aliased

    assert run_threads(3, main, transport=transport) == [["w", "b"], ["w", "b"], []]


def test_other_types_are_no_views():
    def main(comm: Communicator) -> list[str]:
        mine = {"w": tiny.numbered(4), "n": tiny.numbered(4, dtype=torch.int64)}
        resharder = Resharder(mine, "hf", "hf", comm=comm, alias=True, dtype="bfloat16")
        assert resharder.run()["w"].dtype == torch.bfloat16
        return resharder.report.aliased

    assert run_threads(1, main, transport="loopback") == [["n"]]


def test_names_meet_through_wrappers(transport):
    """B10: the exact name first, then without what wrappers add; counts are returned."""
    sent = {
        "module._orig_mod.a.weight": tiny.numbered(2, 2),
        "base_model.model.b.base_layer.weight": tiny.numbered(3, start=50),
    }
    lost = {"blocks.0.c.bias": torch.zeros(2)}

    def main(comm: Communicator, names: list[str], **options) -> tuple:
        held = {**sent, **(lost if len(names) == 3 else {})} if comm.rank == 0 else None
        shapes = {"a.weight": (2, 2), "b.weight": (3,), "c.bias": (2,)}
        out = {name: torch.full(shapes[name], -1.0) for name in names}
        resharder = Resharder(held, "hf", "replicated(2)", comm=comm, out=out, **options)
        resharder.run()
        assert out["a.weight"].equal(tiny.numbered(2, 2))
        assert out["b.weight"].equal(tiny.numbered(3, start=50))
        assert "c.bias" not in out or out["c.bias"].eq(-1).all()
        return resharder.report.tensors_sent, resharder.report.tensors_applied

    assert run_threads(2, main, ["a.weight", "b.weight"], transport=transport) == [(2, 2)] * 2

    def fails(comm: Communicator) -> str:
        with pytest.raises(UsageError) as raised:
            main(comm, ["a.weight", "b.weight", "c.bias"])
        return str(raised.value)

    for text in run_threads(2, fails, transport=transport):
        assert "'blocks.0.c.bias' in the source has no destination" in text
        assert "'c.bias' in the destination received nothing" in text

    def partly(comm: Communicator) -> tuple:
        return main(comm, ["a.weight", "b.weight", "c.bias"], partial=True)

    assert run_threads(2, partly, transport=transport) == [(3, 2)] * 2


def test_a_module_that_is_really_called_module(transport):
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = torch.nn.Linear(2, 3)
            self.module.bias.requires_grad_(False)  # a frozen one counts like any other

    source, target = Outer(), Outer()

    def main(comm: Communicator) -> int:
        held = source if comm.rank == 0 else None
        out = target.state_dict() if comm.rank == 1 else None
        resharder = Resharder(held, "hf", "hf@1", comm=comm, out=out)
        assert sorted(resharder.run()) == (["module.bias", "module.weight"] if comm.rank else [])
        return resharder.report.tensors_applied

    assert run_threads(2, main, transport=transport) == [2, 2]
    tiny.assert_same(target.state_dict(), source.state_dict())


@pytest.mark.parametrize(
    ("lost", "extra", "expected"),
    [
        (
            "model.layers.0.self_attn.k_proj.weight",
            None,
            "do not match: '{lost}' in the destination received nothing. Rename",
        ),
        (None, "v_head.weight", "do not match: '{extra}' in the source has no destination. Rename"),
        ("lm_head.weight", "head.weight", "'{extra}' in the source .* '{lost}' in the destination"),
    ],
)
def test_a_model_that_is_not_what_its_config_says(lost, extra, expected):
    """A fused tensor would otherwise go without a part, and nobody would notice."""
    facts = tiny.config()
    weights = tiny.weights(Spec.from_config(facts)) | ({extra: torch.ones(2)} if extra else {})
    weights.pop(lost, None)

    class Model(torch.nn.Module):
        config = SimpleNamespace(to_dict=lambda: facts)

        def state_dict(self, **options):
            return weights

    def main(comm: Communicator) -> None:
        kept = reshard(Model(), "hf", "replicated(1)", comm=comm)
        tiny.assert_same(kept, weights)  # names that are kept need no config
        with pytest.raises(UsageError, match=expected.format(lost=lost, extra=extra)):
            reshard(Model(), "hf", "vllm(tp=1)", comm=comm)

    run_threads(1, main, transport="loopback")


def test_buffers_move_too(transport):
    class WithBuffers(torch.nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.register_buffer("mean", torch.full((2,), value))
            self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def main(comm: Communicator) -> list[str]:
        got = reshard(WithBuffers(4.0), "replicated(2)", "replicated(2)", comm=comm)
        assert got["mean"].tolist() == [4, 4]
        return list(got)

    assert run_threads(2, main, transport=transport) == [["mean"]] * 2


class Tables(torch.nn.Module):
    """A buffer of each kind, one of them in a module below, as in a rotary embedding."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), value))
        self.register_buffer("mean", torch.full((3,), value))
        self.rotary = torch.nn.Module()
        self.rotary.register_buffer("inv_freq", torch.full((4,), value), persistent=False)


def test_buffers_that_are_not_persistent_move_when_asked(transport):
    source, target = Tables(4.0), Tables(0.0)

    def main(comm: Communicator) -> None:
        held = source if comm.rank == 0 else None
        name = "rotary.inv_freq"
        assert name not in reshard(held, "hf", "replicated(2)", comm=comm)
        out = None
        if comm.rank == 1:
            out = {**target.state_dict(), **dict(target.named_buffers())}
        resharder = Resharder(held, "hf", "replicated(2)", comm=comm, out=out, buffers=True)
        for value in (4.0, 5.0):
            if held is not None:
                held.rotary.inv_freq.fill_(value)
            got = resharder.run()
            assert sorted(got) == ["mean", name, "weight"] and got[name].eq(value).all()
        if comm.rank == 1:
            assert target.rotary.inv_freq.eq(5).all() and target.mean.eq(4).all()

    run_threads(2, main, transport=transport)


def test_a_buffer_that_was_replaced_is_noticed():
    def main(comm: Communicator) -> None:
        module = Tables(1.0)
        resharder = Resharder(module, "hf", "hf", comm=comm, buffers=True)
        module.rotary.inv_freq = torch.zeros(4)
        with pytest.raises(UsageError, match=r"'rotary.inv_freq' is another tensor"):
            resharder.run()

    run_threads(1, main, transport="loopback")


def test_buffers_of_a_dict_are_in_it():
    def main(comm: Communicator) -> None:
        with pytest.raises(UsageError, match="buffers=True is for modules, and model is a dict"):
            reshard({"w": torch.ones(1)}, "hf", "hf", comm=comm, buffers=True)

    run_threads(1, main, transport="loopback")


def test_plan_without_weights_or_ranks():
    spec = Spec.from_config(tiny.config(layers=2))
    plan = hybridengine.plan(spec, "fsdp2(2)", "vllm(tp=2)")
    plan.check()
    for rank in (0, 1):
        schedule = plan.schedule(rank, bucket_bytes=128)
        assert schedule.bucket_bytes == 128 and max(b["num_bytes"] for b in schedule.buckets) <= 128
        schedule.check()
        assert len(plan.moves_of(rank)) == schedule.num_moves
    assert "'fsdp2(2)' -> 'vllm(tp=2)'" in repr(plan) and "fsdp2(2) -> vllm(tp=2)" in plan.text
    half = hybridengine.plan(spec, "fsdp2(2)", "vllm(tp=2)", dtype=torch.bfloat16)
    received = [sum(row["bound_bytes"] for row in each.certificate.ranks) for each in (plan, half)]
    assert received[0] == 2 * received[1] > 0
    with pytest.raises(UsageError, match="dst is an int"):
        hybridengine.plan(spec, "hf", 3)
    with pytest.raises(ValueError, match="bucket"):
        hybridengine.plan(spec, "hf", "hf").schedule(0, bucket_bytes=0)
