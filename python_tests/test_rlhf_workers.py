"""Roles on two ranks of a real Ray: contexts, calls, references, several roles on a rank."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import MemoryStore, run_threads
from rlhf_workers_scenarios import Paired, Reader, Worker, rows_of

import hybridengine
from hybridengine import Communicator, UsageError, all_reduce
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config import schema
from hybridengine.rlhf.workers import (
    Cluster,
    Pick,
    Pool,
    RankContext,
    Reference,
    Role,
    WorkerGroup,
    dispatch,
)
from hybridengine.rlhf.workers.reference import Resolver
from hybridengine.rlhf.workers.wire import _decode, _encode

pytestmark = [pytest.mark.python, pytest.mark.slow]  # starting Ray and two ranks: some 8 s


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the ranks of the pool write what they traced."""
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def pool(traces: Path) -> Iterator[Pool]:
    env = {"OF_THIS_POOL": "yes", "HYBRIDENGINE_TRACE": f"{traces}/%r.json"}
    with Cluster.start(schema.Cluster(), num_cpus=2) as cluster:
        yield Pool.create(cluster, "train", 2, env=env)


@pytest.fixture(scope="module")
def worker(pool: Pool) -> WorkerGroup:
    return pool.start_role("worker", Worker, {"lr": 0.1})


def test_importing_the_package_imports_no_ray() -> None:
    code = "import sys, hybridengine.rlhf.workers as w; w.Role; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


def test_a_rank_knows_itself_and_its_world(pool: Pool, worker: WorkerGroup) -> None:
    found = worker.process()
    assert len({each["pid"] for each in found} | {os.getpid()}) == 3
    for rank, each in enumerate(found):
        assert each["ranks"] == (rank, 2, rank, 2)
        assert each["comm"] == (rank, 2)
        assert each["mesh"] == ((2,), rank)
        assert each["device"] == "cpu"
        assert each["threads"] == 1
        assert each["env"] == {"HF_HUB_OFFLINE": "1", "OF_THIS_POOL": "yes"}
        assert each["config"] == {"lr": 0.1}
        assert each["folder"] == os.getcwd()
        assert each["package"] == hybridengine.__file__  # whatever lies in that folder
    assert len(pool.hosts) == 2 and pool.hosts[0] == pool.hosts[1]


def test_ranks_compute_together(worker: WorkerGroup) -> None:
    assert worker.sum_of_ranks() == [[3.0, 3.0], [3.0, 3.0]]


def test_a_trace_is_whole_after_every_call(worker: WorkerGroup, traces: Path) -> None:
    """Ranks are killed in the end, so they cannot write it then."""
    worker.traced("a")
    worker.traced("b")
    for rank in range(2):
        events = json.loads((traces / f"{rank}.json").read_text())["traceEvents"]
        assert [event["name"] for event in events if event.get("cat") == "rlhf"] == ["a", "b"]


def test_one_to_all_by_place_and_what_is_collected(worker: WorkerGroup) -> None:
    assert worker.echo("a", times=2) == [["a", "a"], ["a", "a"]]
    assert worker.scale([1.0, 2.0], 10.0) == [10.0, 20.0]
    assert (worker.first(), worker.last(), worker.nothing()) == (0, 1, None)


def test_calls_that_are_sent_run_in_order_and_answer_when_asked(worker: WorkerGroup) -> None:
    sent = [worker.echo.remote(number) for number in range(3)]
    assert [pending.result() for pending in reversed(sent)] == [[[n], [n]] for n in (2, 1, 0)]
    assert sent[0].result() == [[0], [0]]
    assert len(sent[0].refs) == 2


def test_the_ranks_of_a_place_have_the_same_rows_and_one_answers(
    pool: Pool, worker: WorkerGroup
) -> None:
    paired = pool.start_role("paired", Paired)
    assert (paired.num_places, worker.num_places) == (1, 2)
    assert paired.whereabouts() == [(0, 1, 0, 2, 1), (0, 1, 1, 2, 1)]
    a, b = worker.make_rows()
    assert paired.first_id([[Pick(b, [1]), Pick(a, [2])]]) == [(0, 110)]
    (made,) = paired.doubled([a])
    assert (made.rank, made.summary) == (0, 0)
    assert worker.ids([made, made])[1][0] == [0, 20, 22, 40, 42, 44]
    sent = paired.doubled.remote([a])
    assert worker.ids([b, sent.references])[1][0] == [0, 20, 22, 40, 42, 44]
    assert len(sent.result()) == 1
    with pytest.raises(UsageError, match=r"first_id takes one entry for each of the 1 places.*2"):
        paired.first_id([a, b])


def test_sums_over_places_count_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks in two places: the data communicator has one rank of each."""
    monkeypatch.setenv("HYBRIDENGINE_TRANSPORT", "loopback")
    store = MemoryStore()

    def of_rank(comm: Communicator) -> list[tuple[int, ...]]:
        facts: dict[str, Any] = dict.fromkeys(("group", "mesh"))
        rank = RankContext(
            "train", comm.rank, 4, "here", torch.device("cpu"), comm=comm, store=store, **facts
        )
        alone, two = rank.of_role("actor", 1), rank.of_role("rollout", 2)
        assert alone.data_comm is comm and (alone.place, alone.num_places) == (comm.rank, 4)
        two.progress()
        assert rank.pulse is two.pulse and two.roles is rank.roles
        rows = torch.tensor([10.0**two.place])
        all_reduce(rows, comm=two.data_comm)
        places = torch.tensor([float(comm.rank)])
        all_reduce(places, comm=two.place_comm)
        return [(two.place, two.num_places), (int(rows), int(places))]

    found = run_threads(4, of_rank, transport="loopback")
    assert found == [[(rank // 2, 2), (11, 1 if rank < 2 else 5)] for rank in range(4)]


def test_names_of_pools_are_used_once(pool: Pool) -> None:
    with pytest.raises(UsageError, match=r"has a pool 'train' already\. Give it another"):
        Pool.create(pool.cluster, "train", 1)


def test_wrong_calls_are_refused_before_they_are_sent(worker: WorkerGroup) -> None:
    with pytest.raises(
        UsageError, match=r"worker.scale takes one entry for each of the 2 places.*3"
    ):
        worker.scale([1.0, 2.0, 3.0], 1.0)
    with pytest.raises(UsageError, match="not a float"):
        worker.scale(1.0, 1.0)
    with pytest.raises(AttributeError, match=r"no dispatched method 'hidden': it has .*echo"):
        worker.hidden()
    with pytest.raises(UsageError, match="holds a role 'worker' already"):
        worker.pool.start_role("worker", Worker)
    with pytest.raises(UsageError, match=r"the arguments of worker.echo cannot be sent.*lock"):
        worker.echo(threading.Lock())
    assert worker.echo(1) == [[1], [1]]


def test_values_stay_where_they_are_made(worker: WorkerGroup) -> None:
    references = worker.make_rows()
    assert [reference.summary for reference in references] == ["rows of 0", "rows of 1"]
    assert [reference.rank for reference in references] == [0, 1]
    got = worker.ids([references[1], references[0]])
    for (ids, logps, truncated, prompts), maker in zip(got, (1, 0), strict=True):
        expected = rows_of(maker)
        assert ids == [100 * maker + each for each in (0, 10, 11, 20, 21, 22)]
        assert logps == expected["logps"].tolist()
        assert truncated == [True, False, maker == 1]
        assert prompts == [f"{maker}-{row}" for row in range(3)]


def test_a_big_value_does_not_pass_through_the_controller(worker: WorkerGroup) -> None:
    import ray

    num_elems = 1 << 20
    reference = worker.make_zeros(num_elems)[0]
    assert len(pickle.dumps(reference.summary)) < 100
    assert worker.add_one_in_place(reference) == [float(num_elems)] * 2
    # The rank changed its own copy: the object store's memory is shared and read-only.
    assert float(ray.get(reference.ref).sum()) == 0.0


def test_picked_rows_of_several_references_are_one_batch(worker: WorkerGroup) -> None:
    a, b = worker.make_rows()
    for_rank_0 = [Pick(b, [2, 0]), Pick(a, [1])]
    for_rank_1 = [a, Pick(b, [])]
    (ids_0, _, truncated_0, prompts_0), (ids_1, *_) = worker.ids([for_rank_0, for_rank_1])
    assert ids_0 == [120, 121, 122, 100, 10, 11]
    assert truncated_0 == [True, True, False]
    assert prompts_0 == ["1-2", "1-0", "0-1"]
    assert ids_1 == [0, 10, 11, 20, 21, 22]


def test_rows_that_two_ranks_take_are_cut_where_they_lie(pool: Pool, worker: WorkerGroup) -> None:
    import ray

    _, b = worker.make_rows()
    stored = ray.get([part.ref for part in pool.cluster.cut(b, [[2, 0], [1]])])
    parts = ray.get([each.ref for each in stored])
    assert [part["prompt"] for part in parts] == [["1-2", "1-0"], ["1-1"]]
    assert [part["ids"].tolist() for part in parts] == [[120, 121, 122, 100], [110, 111]]
    (ids_0, *_), (ids_1, *_) = worker.ids([Pick(b, [1]), Pick(b, [2, 0])])
    assert (ids_0, ids_1) == ([110, 111], [120, 121, 122, 100])


def test_references_are_found_inside_of_arguments(worker: WorkerGroup) -> None:
    a, b = worker.make_rows()
    zeros = worker.make_zeros(3)
    nested = worker.echo({"x": (a, [zeros[0], zeros[1]]), "y": [b, 1]})[0][0]
    assert nested["x"][0]["ids"].tolist() == [0, 10, 11, 20, 21, 22]
    assert [each.tolist() for each in nested["x"][1]] == [[0.0] * 3] * 2
    assert nested["y"][0]["prompt"] == ["1-0", "1-1", "1-2"] and nested["y"][1] == 1
    assert worker.types(a, [a, b], zeros) == [["Batch", "Batch", "list"]] * 2


def test_the_controller_puts_a_value_once_for_all(pool: Pool, worker: WorkerGroup) -> None:
    reference = pool.cluster.put(rows_of(4), summary=3)
    assert (reference.summary, reference.rank) == (3, -1)
    got = worker.ids([Pick(reference, [0]), Pick(reference, [2])])
    assert [each[0] for each in got] == [[400], [420, 421, 422]]


def test_roles_of_a_pool_share_its_ranks(pool: Pool, worker: WorkerGroup) -> None:
    reader = pool.start_role("reader", Reader)
    before = [len(each) for each in reader.kept()]
    worker.add_one_in_place(torch.zeros(2))
    assert [each[count:] for each, count in zip(reader.kept(), before, strict=True)] == [[2.0]] * 2
    assert {"reader", "worker"} <= set(worker.process()[0]["roles"])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3).t(),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.empty(0, 3),
        torch.tensor([True, False]),
        torch.arange(10.0)[3:5],
        torch.tensor([1 + 2j]),
        torch.ones(2, requires_grad=True) * 3,
    ],
    ids=["transposed", "scalar", "empty", "bool", "view", "complex", "with_gradient"],
)
def test_tensors_travel_as_their_bytes(tensor: torch.Tensor) -> None:
    data, dtype, shape = _encode(tensor)
    assert data.nbytes == tensor.numel() * tensor.element_size()
    data.flags.writeable = False
    arrived = _decode((data, dtype, shape))
    assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(arrived, tensor)
    arrived.fill_(0)  # its own memory
    assert not arrived.requires_grad


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(UsageError, match="sparse_coo"):
        _encode(torch.eye(2).to_sparse())


def test_arguments_without_references_stay_the_same_objects() -> None:
    argument = [1, {"a": (2,)}, Batch(torch.tensor([], dtype=torch.int64))]
    assert Resolver().resolve(argument) is argument


def test_rows_of_what_is_no_batch(pool: Pool, worker: WorkerGroup) -> None:
    pick = Pick(pool.cluster.put([1, 2]), [0])
    with pytest.raises(UsageError, match="rows are picked from a list"):
        Resolver().resolve(pick)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "broadcast"}, "mode='broadcast' is not known. Use one_to_all, by_place"),
        ({"collect": "some"}, "collect='some'"),
        ({"returns": "copy"}, "returns='copy'"),
    ],
)
def test_unknown_words_of_dispatch(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        dispatch(**options)


def test_methods_of_a_base_class_are_dispatched_too() -> None:
    from hybridengine.rlhf.workers.role import dispatched_methods

    class Base(Role):
        @dispatch(collect="first")
        def a(self) -> None: ...

    class Derived(Base):
        @dispatch("by_place")
        def b(self) -> None: ...

    found = dispatched_methods(Derived)
    assert {name: (each.mode, each.collect) for name, each in found.items()} == {
        "a": ("one_to_all", "first"),
        "b": ("by_place", "all"),
    }


def test_a_reference_is_a_value() -> None:
    assert Reference("x", 1, 0) == Reference("x", 1, 0)
