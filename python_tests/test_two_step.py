"""The two-step update against the same update on whole tensors, to the last bit."""

from __future__ import annotations

import pytest
import tiny_models as tiny
import torch
import two_step_scenarios as scenarios
from ranks import run_threads
from two_step_scenarios import Case

from hybridengine import Communicator, Spec, all_reduce, reshard

pytestmark = pytest.mark.python


def spec_of(dtype: str, **options) -> Spec:
    facts = tiny.config("LlamaForCausalLM", vocab=8, layers=2, intermediate=12, **options)
    return Spec.from_config(facts, dtype)


def check(case: Case, world: int, transport: str = "shm") -> None:
    """Training and generation tensors of every rank after every step, and the norms."""
    wanted = scenarios.expected(case)

    def main(comm: Communicator) -> None:
        seen, two_step = scenarios.run_case(comm, case)
        for got, (masters, norm) in zip(seen, wanted, strict=True):
            for key, layout in (("training", case.train_layout), ("generation", case.gen_layout)):
                whole = scenarios.as_stored(masters, layout)
                local = scenarios.cut(whole, layout, comm.rank)
                tiny.assert_same({name: got[key][name] for name in local}, local)
            assert got.get("norm") == norm
        report = two_step.report
        assert report.received_bytes == report.bound_bytes

    run_threads(world, main, transport=transport)


@pytest.mark.parametrize("transport", ["loopback", "shm", "cma"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_every_optimizer_on_every_transport(optimizer, transport):
    case = Case(spec_of("bfloat16"), "replicated(3)", "replicated(3)", 3, optimizer, max_norm=1.0)
    check(case, 3, transport)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("train", "replicas", "gen"),
    [
        ("replicated(1)", 1, "replicated(1)"),
        ("replicated(2)", 2, "vllm(tp=2)"),
        ("replicated(3)", 3, "vllm(tp=1,dp=3)"),
        ("replicated(4)", 4, "tensor_parallel(4)"),
        ("replicated(4)", 4, "vllm(tp=2,replicas=2)"),
        ("fsdp2(1,replicas=2,tp=2)", 2, "vllm(tp=2,dp=2)"),
        ("fsdp2(1,replicas=2,tp=2)", 2, "replicated(4)"),
        ("fsdp2(1,replicas=1,tp=2)", 1, "vllm(tp=1,dp=2)"),
        ("fsdp2(1,replicas=2,tp=2)", 2, "vllm(tp=4)"),
    ],
)
def test_layouts(train, replicas, gen, dtype):
    kv_heads = 4 if "tensor_parallel" in gen else 2
    case = Case(spec_of(dtype, kv_heads=kv_heads), train, gen, replicas, max_norm=0.5)
    check(case, len(case.train_layout.ranks))


@pytest.mark.parametrize(
    ("dtype", "gen_dtype"), [("float32", "bfloat16"), ("bfloat16", "float16"), ("bfloat16", None)]
)
@pytest.mark.parametrize("train", ["replicated(4)", "fsdp2(1,replicas=2,tp=2)"])
def test_generation_in_another_type(train, dtype, gen_dtype):
    replicas = 4 if train == "replicated(4)" else 2
    case = Case(spec_of(dtype), train, "vllm(tp=2,dp=2)", replicas, "sgd", dtype=gen_dtype)
    check(case, 4)


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("grad_op", ["sum", "mean"])
def test_ops_and_tied_weights(grad_op, tie):
    case = Case(spec_of("bfloat16", tie=tie), "replicated(2)", "vllm(tp=2)", 2, grad_op=grad_op)
    check(case, 2)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_masters_of_many_blocks(monkeypatch, optimizer):
    """Their number changes nothing but the optimizer's parameters."""
    monkeypatch.setattr("hybridengine.two_step.optimizers._BLOCK_ELEMS", 5)
    case = Case(spec_of("bfloat16"), "replicated(2)", "vllm(tp=2)", 2, optimizer, max_norm=1.0)
    check(case, 2)


@pytest.mark.parametrize("grad_op", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_as_our_collectives_do_it(grad_op, dtype):
    """all_reduce of whole gradients in float32, clip, the optimizer on whole tensors, reshard."""
    case = Case(
        spec_of(dtype), "replicated(3)", "vllm(tp=1,dp=3)", 3, max_norm=0.5, grad_op=grad_op
    )

    def main(comm: Communicator) -> None:
        seen, _ = scenarios.run_case(comm, case)
        start = scenarios.random_tensors(case.spec, 0)
        masters = {name: torch.nn.Parameter(each.float()) for name, each in start.items()}
        optimizer = scenarios.OPTIMIZERS[case.optimizer](list(masters.values()))
        for step, got in enumerate(seen[1:]):
            gradients = {n: g.float() for n, g in case.gradients(step, comm.rank).items()}
            all_reduce(list(gradients.values()), grad_op, comm=comm)
            layouts = case.train_layout, case.gen_layout
            assert got["norm"] == scenarios.clip_whole(gradients, *layouts, case.max_norm)
            for name, each in masters.items():
                each.grad = gradients[name]
            optimizer.step()
            whole = scenarios.as_stored(scenarios.copies(masters), case.gen_layout)
            tiny.assert_same(got["training"], whole)
            wanted = reshard(whole, case.train_layout, case.gen_layout, comm=comm)
            tiny.assert_same(got["generation"], wanted)

    run_threads(3, main, transport="shm")


def test_ranks_that_only_generate_or_only_train():
    spec = spec_of("bfloat16")
    check(Case(spec, "replicated(2)", "vllm(tp=2)@1-2", 2, max_norm=1.0), 3)
