"""Plain arguments: what is taken, and what is said about the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import MemoryStore, run_threads

import hybridengine as he
from hybridengine import Communicator, Layout, LayoutRule, Mapping, Spec, UsageError
from hybridengine.launch import run_local
from hybridengine.options import flag, parse_size, seconds, size_bytes, whole

# Not under sanitizers: gloo's threads, of which they know nothing, are in this process.
pytestmark = pytest.mark.python


@pytest.mark.parametrize("text", ["32M", "32m", " 32MiB ", "33554432", "32768K"])
def test_sizes(text):
    assert parse_size(text) == size_bytes("size", text) == 32 << 20


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5M", "32 M B", "1T", "32MB", "0x20"])
def test_bad_sizes(text):
    with pytest.raises(UsageError, match="is no size"):
        parse_size(text)


def test_what_is_taken():
    assert (seconds("t", 5), seconds("t", 0.5), seconds("t", None)) == (5.0, 0.5, None)
    assert (whole("n", 3), whole("n", np.int64(-3))) == (3, -3)
    assert flag("f", True) is True and flag("f", False) is False


SPEC = Spec.from_tensors([("w", (2,), "float32")])
LAYOUT = Layout.hf().bind(SPEC)

WRONG_CALLS = {
    "a store": (lambda: Communicator({}, 0, 1), "store is a dict and has no set()"),
    "a rank": (lambda: Communicator(MemoryStore(), "0", 1), "rank is '0'. Use a whole number"),
    "a timeout": (
        lambda: Communicator(MemoryStore(), 0, 1, timeout="5"),
        "timeout must be a positive number of seconds, not '5'",
    ),
    "an enter_timeout": (
        lambda: Communicator(MemoryStore(), 0, 1, enter_timeout=0),
        "enter_timeout must be a positive number of seconds, not 0",
    ),
    "a world": (lambda: run_local("2", print), "world is '2'. Use a whole number of ranks"),
    "a function": (lambda: run_local(1, 3), "function is an int. Use a function"),
    "a launch's timeout": (lambda: run_local(1, print, timeout=-1), "number of seconds, not -1"),
    "a barrier": (lambda: he.barrier(3), "comm is an int, not a Communicator"),
    "parameters": (
        lambda: he.GradientReducer(torch.nn.Linear(2, 2)),
        "parameters is a Linear. Pass model.parameters()",
    ),
    "named parameters": (
        lambda: he.GradientReducer(torch.nn.Linear(2, 2).named_parameters()),
        "a parameter is a tuple, not a tensor. Pass model.parameters()",
    ),
    "a reducer's op": (
        lambda: he.GradientReducer(torch.nn.Linear(2, 2).parameters(), op="avg"),
        "op is 'avg'. Use sum, mean, max, min",
    ),
    "sync_every": (
        lambda: he.GradientReducer(torch.nn.Linear(2, 2).parameters(), sync_every="2"),
        "sync_every is '2'. Use a whole number of backward passes",
    ),
    "rows": (lambda: he.block_scores(torch.ones(4), "2"), "rows is '2'. Use a whole number"),
    "gradients": (lambda: he.block_scores(3, 2), "gradients are an int. Give a torch tensor"),
    "empty of a rule": (
        lambda: he.empty(Layout.hf(), 0),
        "layout is a LayoutRule, which has no shapes. Bind it first",
    ),
    "a plan's size": (
        lambda: he.plan(SPEC, "hf", "hf").schedule(0, "3X"),
        "bucket_bytes='3X' is no size",
    ),
    "a plan's spec": (lambda: he.plan({}, "hf", "hf"), "spec is a dict. Make one with Spec.from_"),
    "a bind": (lambda: Layout.hf().bind({}), "spec is a dict. Make one with Spec.from_"),
    "rows of a spec": (lambda: Spec.from_tensors([("w", 2, "float32")]), "Give rows as ('lm_head"),
    "names of a spec": (lambda: Spec.from_tensors([(3, (2,), "float32")]), "Give rows as ('lm_h"),
    "a spec's dict": (lambda: Spec.from_tensors({"w": 3}), "'w' is an int, not a tensor"),
    "a config": (lambda: Spec.from_config(3), "an int is no config. Pass a dict"),
    "a directory": (lambda: Spec.from_hf(3), "directory is an int. Name a checkpoint"),
    "a saved spec": (lambda: Spec.load("x"), "a spec to load is 'x'. Use the bytes that save()"),
    "a saved layout": (lambda: Layout.load("x"), "a layout to load is 'x'. Use the bytes"),
    "a name": (lambda: SPEC.find(3), "name is 3. Use a text"),
    "a rank's locals": (lambda: LAYOUT.locals("0"), "rank is '0'. Use a whole number"),
    "an op": (lambda: LAYOUT.partial(3), "op is 3. Use a text"),
    "a layout's text": (lambda: LayoutRule.parse(3), "a layout is an int. Use a text such as"),
    "a layout's ranks": (lambda: Layout.fsdp2(2, ranks=3), "ranks are 3. Use a list of ranks"),
    "a mapping": (lambda: Layout.vllm(mapping={}), "mapping is a dict. Make a hybridengine.Map"),
    "rows of a mapping": (lambda: Mapping([3]), "an int is no row of a mapping. Give Weight rows"),
}


@pytest.mark.parametrize("what", WRONG_CALLS)
def test_wrong_arguments_are_named(what):
    call, expected = WRONG_CALLS[what]
    with pytest.raises(UsageError) as raised:
        call()
    assert expected in str(raised.value)


def collectives(comm: Communicator, t: torch.Tensor) -> dict:
    factory = torch.optim.AdamW
    module = torch.nn.Linear(2, 2)
    scale = torch.zeros(2).to(torch.float8_e8m0fnu)
    return {
        "tensor 1: cannot use the memory of a builtins.int": lambda: he.all_reduce(
            [t, 3], comm=comm
        ),
        "tensor 1: cannot use the memory of a torch.Tensor: its element type is "
        "torch.float8_e8m0fnu. View it as one of": lambda: he.all_reduce([t, scale], comm=comm),
        "op has a wrong type: 3. Use sum, mean, max or min": lambda: he.all_reduce(t, 3, comm=comm),
        "bucket_bytes has a wrong type: '4X'. Use a number of bytes, '4M' or 'auto'": lambda: (
            he.all_reduce(t, comm=comm, bucket_bytes="4X")
        ),
        "bucket_bytes has a wrong type: None. Use a number of bytes": lambda: he.all_gather(
            torch.ones(8), t, comm=comm, bucket_bytes=None
        ),
        "src has a wrong type: '0'. Use the number of a rank": lambda: he.broadcast(
            t, "0", comm=comm
        ),
        "src is rank 2 of 2 ranks. Use 0 to 1": lambda: he.broadcast(t, 2, comm=comm),
        "out tensor 0 is an int. Give torch tensors": lambda: he.masked_all_reduce(
            t, torch.ones(4), 0.5, out=3, comm=comm
        ),
        "bucket_bytes='4X' is no size": lambda: he.masked_all_reduce(
            t, torch.ones(4), 0.5, bucket_bytes="4X", comm=comm
        ),
        "values is a list. Give a torch tensor": lambda: he.masked_mean_var([1], None, comm),
        "keep is an int. Give a torch tensor": lambda: he.masked_mean_var(t, 3, comm),
        "optimizer_factory is an int. Use a function": lambda: he.TwoStep(
            module, 3, "hf", comm=comm
        ),
        "gen_layout is an int. Pass a string": lambda: he.TwoStep(module, factory, 3, comm=comm),
        "train_layout is an int. Pass a string": lambda: he.TwoStep(
            module, factory, "hf", train_layout=3, comm=comm
        ),
        "max_norm='1' is not above 0": lambda: he.TwoStep(
            module, factory, "hf", max_norm="1", comm=comm
        ),
    }


def test_collective_calls_with_wrong_arguments_raise_on_every_rank_and_leave_it_usable():
    def main(comm: Communicator) -> None:
        for expected, call in collectives(comm, torch.ones(4)).items():
            with pytest.raises(UsageError) as raised:
                call()
            assert expected in str(raised.value) and "\n" not in str(raised.value)
            he.barrier(comm)

    run_threads(2, main, transport="loopback")


def test_sizes_of_collectives_may_be_texts():
    def main(comm: Communicator) -> tuple:
        t = torch.ones(4)
        he.all_reduce(t, comm=comm, bucket_bytes="4M")
        masked = he.masked_all_reduce(t, torch.ones(4), 0.5, bucket_bytes="4M", comm=comm)
        return t.tolist(), masked.values.tolist()

    assert run_threads(2, main, transport="loopback") == [([2] * 4, [2] * 4)] * 2


def test_a_tensor_without_memory_has_one_line():
    def main(comm: Communicator) -> str:
        with pytest.raises(UsageError) as raised:
            he.all_reduce(torch.ones(2, device="meta"), comm=comm)
        return str(raised.value)

    (text,) = run_threads(1, main, transport="loopback")
    assert "meta" in text and "\n" not in text


def test_empty_is_empty_outside_of_the_layout():
    assert list(he.empty(LAYOUT, 0)) == ["w"]
    assert he.empty(LAYOUT, 3) == {}


def test_a_process_group_is_no_communicator(tmp_path: Path):
    """The error says how to get one over a group."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for call in (
            lambda: he.reshard({"w": torch.ones(1)}, "hf", "hf", comm=dist.group.WORLD),
            lambda: he.all_reduce(torch.ones(1), comm=dist.group.WORLD),
        ):
            with pytest.raises(
                UsageError, match=r"is a ProcessGroup, .*group_communicator\(group\)"
            ):
                call()
    finally:
        dist.destroy_process_group()
