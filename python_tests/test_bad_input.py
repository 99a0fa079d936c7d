"""Wrong calls: every rank raises the same UsageError, nothing is written, the next call works."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import numpy as np
import pytest
import tiny_models as tiny
import torch
from ranks import run_threads, thread_outcomes

import hybridengine
from hybridengine import Communicator, Layout, Resharder, Spec, TransportError, UsageError, reshard

pytestmark = pytest.mark.threads


def refused(world: int, call: Callable[[Communicator], object], transport: str = "loopback") -> str:
    """The one text of the UsageError that every rank raises from `call`, at once; afterwards the
    communicators work."""

    def main(comm: Communicator) -> str:
        began = time.monotonic()
        with pytest.raises(UsageError) as raised:
            call(comm)
        assert time.monotonic() - began < 5
        assert not comm.dead
        one = {"w": torch.ones(1)}
        assert reshard(one, f"replicated({world})", f"fsdp2({world})", comm=comm)
        return str(raised.value)

    texts = set(run_threads(world, main, transport=transport))
    assert len(texts) == 1
    return texts.pop()


def two_rows() -> tiny.Tensors:
    return {"w": torch.ones(2, 3)}


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        ("fsdp3(2)", "hf", r"'fsdp3' is no layout. Use fsdp2, replicated"),
        ("fsdp2(2)", "hf2", r"'hf2' is no layout"),
        ("fsdp2(2,sp=2)", "hf", r"sp is no key of fsdp2. Its keys: n, replicas, tp"),
        ("fsdp2(2)", "vllm(tp=0)", r"tp of vllm is 0. Use a whole number from 1"),
        ("fsdp2(2)", "vllm(tp=2", r"vllm\(tp=2"),
        ("fsdp2(2)", None, r"dst is None. Pass a string such as"),
        ("fsdp2(2)", "replicated(3)", r"dst replicated\(3\) has rank 2, but only 2 ranks take"),
        ("hf@7", "hf", r"src hf@7 has rank 7, but only 2 ranks take part"),
        (
            "hf",
            "fsdp2(2)",
            r"rank 1 passed a model but src hf has only rank 0. Pass model=None there",
        ),
    ],
)
def test_layouts_that_do_not_exist_or_fit(src, dst, expected):
    text = refused(2, lambda comm: reshard(two_rows(), src, dst, comm=comm))
    assert re.search(expected, text) and not text.startswith("rank 0:")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dtype": "int8"}, "dtype=int8 is no floating torch dtype"),
        ({"dtype": torch.int64}, "dtype=int64 is no floating torch dtype"),
        ({"dtype": "brain"}, "dtype=brain is no floating torch dtype"),
        ({"bucket_bytes": 0}, "bucket"),
        ({"bucket_bytes": -1}, "bucket"),
        ({"bucket_bytes": 3}, "bucket"),
        ({"bucket_bytes": "32X"}, "bucket_bytes='32X' is no size. Write 33554432, 512K, 32M"),
        ({"bucket_bytes": None}, "bucket_bytes is None. Use a whole number of bytes"),
        ({"bucket_bytes": 1.5}, "bucket_bytes is 1.5. Use a whole number of bytes"),
        ({"bucket_bytes": 1 << 70}, "more than is counted here"),
        ({"timeout": "5"}, "timeout must be a positive number of seconds, not '5'"),
        ({"timeout": 0}, "timeout must be a positive number of seconds, not 0"),
        ({"timeout": -1.0}, "timeout must be a positive number of seconds, not -1.0"),
        ({"timeout": float("nan")}, "timeout must be a positive number of seconds, not nan"),
        ({"verify": "yes"}, "verify is 'yes'. Use True or False"),
        ({"alias": 1}, "alias is 1. Use True or False"),
        ({"comm": "gloo"}, "comm is a str, not a Communicator. Leave it out for torch's default"),
        ({"transport": 3}, "transport is 3. Use a text"),
        ({"dtype": "float8_e4m3fnuz"}, "'float8_e4m3fnuz' is not an element type. Use one of"),
        ({"out": {1: torch.ones(1)}}, "1 is no name. Use texts such as"),
        ({"out": [torch.ones(1)]}, "out is a list. Pass a dict of tensors by name"),
    ],
)
def test_options_that_are_not_legal(options, expected):
    call = lambda comm: reshard(two_rows(), "fsdp2(2)", "hf", **({"comm": comm} | options))  # noqa: E731
    assert expected in refused(2, call)


@pytest.mark.parametrize("odd", [{"timeout": "5"}, {"bucket_bytes": "x"}, {"verify": 2}])
def test_an_option_that_is_not_legal_on_one_rank(odd):
    def call(comm: Communicator) -> None:
        options = odd if comm.rank == 1 else {}
        reshard(two_rows(), "fsdp2(2)", "hf", comm=comm, **options)

    assert re.search(r"on rank 1|rank 1: ", refused(2, call))


def test_sizes_may_be_texts():
    """One rank writes it as a number, the other as the command line does."""

    def main(comm: Communicator) -> int:
        size = "32K" if comm.rank else 32 << 10
        resharder = Resharder(two_rows(), "fsdp2(2)", "hf", comm=comm, bucket_bytes=size)
        return resharder.schedule.bucket_bytes

    assert run_threads(2, main, transport="loopback") == [32 << 10] * 2


def test_another_transport_than_the_communicators():
    call = lambda comm: reshard(two_rows(), "fsdp2(2)", "hf", comm=comm, transport="shm")  # noqa: E731
    assert "transport='shm' does not fit comm, which uses 'loopback'" in refused(2, call)


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ({"src": "replicated(2)"}, "src is 'fsdp2(2)' on rank 0 and 'replicated(2)' on rank 1"),
        ({"dst": "no such layout"}, "dst is 'hf' on rank 0 and 'no such layout' on rank 1"),
        ({"dtype": "float16"}, "dtype is None on rank 0 and 'float16' on rank 1"),
        ({"bucket_bytes": 64}, "bucket_bytes is 33554432 on rank 0 and 64 on rank 1"),
        ({"verify": True}, "verify is False on rank 0 and True on rank 1"),
    ],
)
def test_ranks_that_pass_different_arguments(odd, expected):
    def call(comm: Communicator) -> None:
        arguments = {"src": "fsdp2(2)", "dst": "hf"} | (odd if comm.rank == 1 else {})
        reshard(two_rows(), comm=comm, **arguments)

    assert f"ranks call reshard differently: {expected}" in refused(2, call)


def on_one_rank(good: object, bad: object, src: str = "fsdp2(2)", **options) -> str:
    """What ranks say when rank 1 passes `bad` for a model."""
    call = lambda comm: reshard(  # noqa: E731
        good if comm.rank == 0 else bad, src, "hf", comm=comm, **options
    )
    return refused(2, call)


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (None, "rank 1 is in src fsdp2(2) but passed model=None"),
        (7, "rank 1: model is an int. Pass a torch.nn.Module or a dict"),
        ({"w": torch.ones(1, 3, device="meta")}, "rank 1: 'w' is on the meta device"),
        ({"w": torch.ones(2, 3).to_sparse()}, "rank 1: 'w' is torch.sparse_coo"),
        ({"w": 5.0}, "rank 1: 'w' is a float, not a torch tensor"),
        ({"w": np.ones((2, 3), np.float32)}, "'w' is a ndarray, not a torch tensor"),
        ({"w": torch.ones(2, 4)}, "'w' is [2, 3] on rank 0 and [2, 4] on rank 1"),
        ({"w": torch.ones(2, 3, 1)}, "'w' is [2, 3] on rank 0 and [2, 3, 1] on rank 1"),
        ({"w": torch.ones(3, 3)}, "'w' is [2, 3] on rank 0, where [3, 3] is due"),
        ({"w": torch.ones(2, 3).half()}, "'w' is float32 on rank 0 and float16 on rank 1"),
        ({"v": torch.ones(2, 3)}, "'w' is on rank 0 but not on rank 1"),
        ({"w": torch.ones(0)}, "'w' is [2, 3] on rank 0 and [0] on rank 1"),
    ],
)
def test_one_rank_with_a_wrong_model(bad, expected):
    assert expected in on_one_rank(two_rows(), bad)


def test_whole_models_that_differ():
    text = on_one_rank(two_rows(), {"w": torch.ones(3, 3)}, "replicated(2)")
    assert "'w' is [2, 3] float32 on rank 0 and [3, 3] float32 on rank 1" in text


def test_a_wrong_shard_of_a_bound_layout():
    """B35: name, both shapes, both layouts, the rank and what to do; on every rank."""
    spec = Spec.from_tensors([("down_proj", (4, 3), "float32")])
    source = Layout.fsdp2(2).bind(spec)

    def call(comm: Communicator) -> None:
        shard = torch.ones(2, 3 if comm.rank == 0 else 2)
        reshard({"down_proj": shard}, source, "vllm(tp=1)", comm=comm)

    text = refused(2, call)
    assert text.startswith("rank 1: model tensor 'down_proj' is [2, 2] float32 on rank 1")
    assert "fsdp2(2) has [2, 3] float32 there (fsdp2(2) -> vllm(tp=1))" in text
    assert "Pass the shard that this layout gives" in text


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ({"w": torch.full((4, 2), 9.0)}, r"'w' is \[4, 2\] float32 on rank 0, hf has \[4, 3\]"),
        ({"w": torch.full((4, 3), 9.0).half()}, r"'w' is \[4, 3\] float16 on rank 0, hf has"),
        ({}, r"do not match: 'w' in the source has no destination. Rename"),
        (
            {"w": torch.full((4, 3), 9.0), "x": torch.full((1,), 9.0)},
            r"do not match: 'x' in the destination received nothing. Rename",
        ),
        ({"v": torch.full((4, 3), 9.0)}, r"'w' in the source .* 'v' in the destination received"),
        ({"w": torch.full((1, 3), 9.0).expand(4, 3)}, r"out tensor 'w' is expanded"),
        ({"w": torch.full((0,), 9.0)}, r"'w' is \[0\] float32 on rank 0, hf has \[4, 3\]"),
        ({"w": None}, r"'w' is None, not a torch tensor"),
    ],
)
def test_out_that_does_not_fit_stays_untouched(out, expected):
    """B24 (a placeholder), B35 (a clash): both shapes, and nothing half written."""

    def call(comm: Communicator) -> None:
        given = out if comm.rank == 0 else None
        reshard(two_rows(), "fsdp2(2)", "hf", comm=comm, out=given)

    assert re.search(expected, refused(2, call))
    assert all(tensor is None or tensor.eq(9).all() for tensor in out.values())


def test_out_on_a_rank_without_destination():
    def call(comm: Communicator) -> None:
        out = {"w": torch.ones(4, 3)} if comm.rank == 1 else None
        reshard(two_rows(), "fsdp2(2)", "hf", comm=comm, out=out)

    text = refused(2, call)
    assert text.startswith("rank 1: ") and "'w' in the destination received nothing" in text


@pytest.mark.parametrize("overlap", ["source", "partly", "each other"])
def test_out_that_shares_memory(overlap):
    def call(comm: Communicator) -> None:
        board = torch.zeros(40)
        mine = {"v": board[:4], "w": board[4:16].view(4, 3)}
        out = {"v": torch.zeros(4), "w": board[10:22].view(4, 3)}
        if overlap == "source":
            out = dict(mine)
        elif overlap == "each other":
            out = {"v": board[30:34], "w": board[28:40].view(4, 3)}
        reshard(mine, "replicated(2)", "replicated(2)", comm=comm, out=out)

    assert re.search(r"tensor '.' and (model|out) tensor '.' share memory", refused(2, call))


def test_layouts_made_by_hand_that_differ():
    """B15: one text for both ranks, and the first line that differs."""
    spec = Spec.from_tensors([("a", (4,), "float32"), ("b", (4,), "float32")])

    def by_hand(names: list[str]) -> Layout:
        rows = [(r, name, (4,), "float32") for r in range(2) for name in names]
        pieces = [(n, r, n, (0,), (4,), 0, (1,)) for r in range(2) for n in names]
        return Layout(hybridengine._core.Layout("mine", spec.core, [0, 1], rows, pieces), spec)

    def call(comm: Communicator) -> None:
        layout = by_hand(["a", "b"] if comm.rank == 0 else ["b", "a"])
        mine = {"a": torch.ones(4), "b": torch.ones(4)}
        reshard(mine, layout, "replicated(2)", comm=comm)

    text = refused(2, call)
    assert re.search(
        r"disagree about the source layout: the first line that differs is line \d+, "
        r"['\"].*'?a'?.*['\"] on rank 0 and ['\"].*'?b'?.*['\"] on rank 1",
        text,
    )


def test_a_layout_by_hand_that_only_one_rank_cannot_plan():
    """It is compared before it is judged, so that no rank waits for one that has raised."""
    spec = Spec.from_tensors([("a", (4,), "float32")])
    other = Spec.from_tensors([("a", (5,), "float32")])

    def call(comm: Communicator) -> None:
        target = Layout.hf().bind(spec if comm.rank == 0 else other)
        reshard({"a": torch.ones(2)}, Layout.fsdp2(2).bind(spec), target, comm=comm)

    assert "ranks disagree about the destination layout" in refused(2, call)


def test_tensors_that_need_gradients_and_strided_ones_are_fine():
    full = tiny.numbered(4, 6)

    def main(comm: Communicator) -> None:
        rows = full[2 * comm.rank : 2 * comm.rank + 2]
        wide = torch.stack([rows, rows], dim=2)[:, :, 0].requires_grad_()
        mine = {"w": wide, "e": torch.ones(1).expand(2, 3)}
        got = reshard(mine, "fsdp2(2)", "replicated(2)", comm=comm)
        assert got["w"].equal(full) and not got["w"].requires_grad
        assert got["e"].equal(torch.ones(4, 3))

    run_threads(2, main, transport="loopback")


def test_a_model_that_raises_on_one_rank_is_heard_by_all():
    """No UsageError of ours: the rank gets its own exception, the others its words."""

    class Broken(torch.nn.Linear):
        def state_dict(self, *args, **options):
            raise RuntimeError("no state today")

    def main(comm: Communicator) -> None:
        model = Broken(2, 2) if comm.rank == 1 else torch.nn.Linear(2, 2)
        reshard(model, "replicated(3)", "replicated(3)", comm=comm)

    outcomes = thread_outcomes(3, main, transport="loopback")
    assert outcomes[1][1:3] == ("RuntimeError", "no state today")
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome[1] == "TransportError"
        assert "rank 1 was lost: RuntimeError: no state today" in outcome[2]


@pytest.mark.parametrize("transport", ["loopback", "shm"])
def test_two_resharders_at_once(transport):
    """Both ranks run, but not the same: an error at the first message, and not a wait."""

    def main(comm: Communicator) -> None:
        mine = tiny.fsdp2({"w": torch.randn(8, 3), "v": torch.randn(9)}, 2, comm.rank)
        both = [
            Resharder(mine, "fsdp2(2)", "replicated(2)", comm=comm, bucket_bytes=size)
            for size in (32, 64)
        ]
        both[comm.rank].run()

    for outcome in thread_outcomes(2, main, transport=transport):
        assert outcome[1] == "TransportError"
        assert "two ranks run different plans" in outcome[2]


@pytest.mark.parametrize("runner", [0, 1, 2])
def test_a_run_against_a_new_resharder(runner):
    def main(comm: Communicator) -> None:
        mine = tiny.fsdp2({"w": torch.randn(9, 3)}, 3, comm.rank)
        resharder = Resharder(mine, "fsdp2(3)", "replicated(3)", comm=comm)
        if comm.rank == runner:
            resharder.run()
        else:
            reshard(mine, "fsdp2(3)", "replicated(3)", comm=comm)

    began = time.monotonic()
    for outcome in thread_outcomes(3, main, transport="loopback"):
        assert outcome[1] == "TransportError"
        assert "two ranks make different calls" in outcome[2]
    assert time.monotonic() - began < 5


def test_a_dead_communicator_repeats_its_first_reason():
    def main(comm: Communicator) -> None:
        mine = tiny.fsdp2({"w": torch.randn(6)}, 2, comm.rank)
        resharder = Resharder(mine, "fsdp2(2)", "replicated(2)", comm=comm)

        def refuse(name: str, tensor: torch.Tensor) -> None:
            if comm.rank == 1:
                raise ValueError("first reason")

        with pytest.raises((ValueError, TransportError), match="first reason"):
            resharder.stream(refuse)
            resharder.run()  # rank 0 may be through before rank 1 raises
        for again in (
            resharder.run,
            lambda: resharder.stream(print),
            lambda: reshard(mine, "fsdp2(2)", "hf", comm=comm),
        ):
            with pytest.raises(TransportError, match=r"communicator is dead: .*first reason"):
                again()
        assert comm.dead and "dead" in repr(comm)

    run_threads(2, main, transport="loopback")


def test_a_call_within_a_call_is_refused():
    def main(comm: Communicator) -> None:
        resharder = Resharder({"w": torch.ones(2)}, "hf", "hf", comm=comm)
        with pytest.raises(UsageError, match="is in a call already"):
            resharder.stream(lambda name, tensor: resharder.run())

    run_threads(1, main, transport="loopback")
