"""Benchmarks of collectives: what they print and return, that their data are exact, and that they
find one wrong element."""

import json
import time

import bench_collective_scenarios as scenarios
import numpy as np
import pytest
import torch

from hybridengine import UsageError
from hybridengine._bench import command, exact, flags, harness, masked_all_reduce
from hybridengine._bench.flags import Options

pytestmark = pytest.mark.python

QUICK = ["-n", "1", "-m", "2"]


def rows_of(path) -> list[dict]:
    return json.loads(path.read_text())


def table_rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if not line.startswith("#")]


# Arrays that are no multiple of ranks, tensors or elements, and empty ones.
LINES = [
    ["all_reduce", "-b", "0", "-e", "70", "-i", "23", "-g", "3", "--tensors", "3"],
    ["all_reduce", "-b", "1001", "-e", "70K", "-f", "67", "-d", "bfloat16", "--bucket", "1K"],
    ["all_reduce", "-b", "999", "-e", "999", "-g", "3", "-d", "all"],
    ["all_reduce", "-b", "999", "-e", "999", "-d", "int8", "-o", "all"],
    ["all_reduce", "-b", "64", "-e", "64", "-g", "1"],
    ["reduce_scatter", "-b", "0", "-e", "70", "-i", "23", "-g", "3", "--tensors", "2"],
    ["reduce_scatter", "-b", "5001", "-e", "5001", "-d", "all", "-o", "avg"],
    ["reduce_scatter", "-b", "5001", "-e", "5001", "-d", "half", "-o", "all"],
    ["all_gather", "-b", "0", "-e", "70", "-i", "23", "-g", "3", "--tensors", "2"],
    ["all_gather", "-b", "5001", "-e", "5001", "-d", "all", "--bucket", "512"],
]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_odd_sizes_are_right_and_so_are_the_rivals(bench, tmp_path, line):
    path = tmp_path / "b.json"
    code, _, err = bench(*line, *QUICK, "-c", "2", "--rival", "gloo", "--json", str(path))
    assert (code, err) == (0, "")
    name = line[0]
    rows = rows_of(path)
    ours = [row for row in rows if row["rival"] is None]
    assert {row["rival"] for row in rows} <= {None, "memcpy", f"gloo_{name}"}
    assert sum(row["rival"] == f"gloo_{name}" for row in rows) == len(ours)
    assert all(row[half]["nwrong"] == 0 for row in rows for half in ("out_of_place", "in_place"))
    options = flags.parse(name, "", scenarios.BENCHES[name].flags, line[1:])
    cases = scenarios.BENCHES[name].cases(options)
    assert len(ours) == len(cases) > 0
    for row, case in zip(ours, cases, strict=True):
        check_row(row, case, name, options.ranks or 2)


def check_row(row: dict, case, name: str, ranks: int) -> None:
    """nccl-tests: the size is of the whole array, the count what the call takes."""
    itemsize = getattr(torch, case.dtype).itemsize
    elems = case.size_bytes // itemsize
    count = elems if name == "all_reduce" else elems // ranks
    assert row["count"] == count
    assert row["size"] == count * itemsize * (1 if name == "all_reduce" else ranks)
    assert (row["redop"], row["root"]) == (case.op, -1)
    passes = 2 if name == "all_reduce" else 1
    for half in (row["out_of_place"], row["in_place"]):
        assert half["busbw"] == pytest.approx(half["algbw"] * passes * (ranks - 1) / ranks)


@pytest.mark.parametrize("name", scenarios.BENCHES)
def test_one_altered_element_is_one_wrong_and_fails(capsys, tmp_path, name):
    path = tmp_path / "b.json"
    line = ["-b", "600", "-e", "600", "--tensors", "3", "-d", "half", "--json", str(path), *QUICK]
    options = flags.parse(name, "", scenarios.SPOILED[name].flags, line)
    assert command.run_bench(scenarios.SPOILED[name], options, line) == command.WRONG == 1
    assert "# Out of bounds values : 1 FAILED" in capsys.readouterr().out
    ours = next(row for row in rows_of(path) if row["rival"] is None)
    assert (ours["out_of_place"]["nwrong"], ours["in_place"]["nwrong"]) == (0, 1)


# What a call that does nothing leaves wrong of 300 elements on two ranks: all of them out of place;
# in place what a rank gathers of the other, or what a sum differs from its summands.
@pytest.mark.parametrize(
    ("name", "out_of_place", "in_place"),
    [("all_reduce", 600, 600), ("reduce_scatter", 300, 300), ("all_gather", 600, 300)],
)
def test_what_was_not_written_is_wrong(capsys, tmp_path, name, out_of_place, in_place):
    path = tmp_path / "b.json"
    line = ["-b", "1200", "-e", "1200", "--json", str(path), *QUICK]
    options = flags.parse(name, "", scenarios.IDLE[name].flags, line)
    assert command.run_bench(scenarios.IDLE[name], options, line) == 1
    capsys.readouterr()
    ours = next(row for row in rows_of(path) if row["rival"] is None)
    assert ours["out_of_place"]["nwrong"] == out_of_place
    assert ours["in_place"]["nwrong"] == in_place


@pytest.mark.parametrize("dtype", exact.TYPES)
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 8])
def test_data_are_exact_in_every_type_and_order(dtype, world):
    before = None
    for number in range(3):
        data = exact.Exact(dtype, world, number)
        sources = torch.stack([data.source(rank)[:5000] for rank in range(world)])
        wide = sources.double()
        expected = {"max": wide.amax(0), "min": wide.amin(0), "sum": wide.sum(0)}
        expected["avg"] = expected["sum"] / world
        for op, result in expected.items():
            assert (data.result(op)[:5000].double() == result).all()
        for order in (range(world), reversed(range(world))):
            total = torch.zeros_like(sources[0])
            for rank in order:
                total += sources[rank]
            assert (total == data.result("sum")[:5000]).all()
        for rank in range(1, world):
            assert (sources[rank] != sources[rank - 1]).all()
        assert before is None or all(
            (data.result(op) != before.result(op)).all() for op in expected
        )
        before = data


def test_too_many_ranks_for_exact_sums():
    with pytest.raises(UsageError, match="sums of 17 ranks are not exact in bfloat16"):
        exact.Exact("bfloat16", 17, 0)


def test_writing_and_comparing_beyond_the_period():
    data = exact.Exact("int32", 2, 1)
    table = data.source(1)
    tensor = torch.zeros(3, 500_001, dtype=torch.int32)
    exact.write(tensor, table, 7)
    index = (np.arange(tensor.numel()) + 7) % table.numel()
    assert (tensor.view(-1).numpy() == table.numpy()[index]).all()
    assert exact.count_different(tensor, table, 7) == 0
    tensor[2, 500_000] += 1
    assert exact.count_different(tensor, table, 7) == 1


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_barrier_has_a_row_and_so_has_its_rival(bench, tmp_path, ranks):
    path = tmp_path / "b.json"
    line = ["barrier", "-g", str(ranks), *QUICK, "--rival", "gloo", "--json", str(path)]
    code, out, err = bench(*line)
    assert (code, err) == (0, "")
    ours, rival = rows_of(path)
    assert (ours["rival"], rival["rival"]) == (None, "gloo_barrier")
    assert ours["nwrong"] == rival["nwrong"] == 0
    assert ours["time_us"] > 0 and ours["in_place"] is None
    assert len(table_rows(out)) == 1


@pytest.mark.parametrize("transport", ["cma", "shm"])
def test_a_put_has_a_row_for_each_size(bench, tmp_path, transport):
    path = tmp_path / "b.json"
    line = ["put", "-b", "0", "-e", "70001", "-i", "70001", "--transport", transport, *QUICK]
    code, out, err = bench(*line, "--json", str(path))
    assert (code, err) == (0, "")
    ours = [row for row in rows_of(path) if row["rival"] is None]
    assert [row["size"] for row in ours] == [0, 70001]
    assert all(row["nwrong"] == 0 and row["time_us"] > 0 for row in ours)
    assert len(table_rows(out)) == 2


def test_one_wrong_byte_of_a_put_is_found(capsys, tmp_path):
    path = tmp_path / "b.json"
    line = ["-b", "100", "-e", "100", "--json", str(path), *QUICK]
    options = flags.parse("x", "", scenarios.SPOILED_PUT.flags, line)
    assert command.run_bench(scenarios.SPOILED_PUT, options, line) == 1
    capsys.readouterr()
    assert [row["nwrong"] for row in rows_of(path) if row["rival"] is None] == [1]


def test_a_rank_that_does_not_wait_is_wrong(capsys, tmp_path):
    path = tmp_path / "b.json"
    line = ["-g", "3", "--json", str(path), *QUICK]
    options = flags.parse("x", "", scenarios.NO_BARRIER.flags, line)
    assert command.run_bench(scenarios.NO_BARRIER, options, line) == 1
    capsys.readouterr()
    (ours,) = rows_of(path)
    assert ours["nwrong"] == 2  # all but the last


MASKS = [
    ["--granularity", "row", "--threshold", "0.5"],
    ["--granularity", "element", "--threshold", "0.9", "-d", "bfloat16"],
    ["--granularity", "tensor", "--threshold", "0.3", "-d", "half", "-o", "sum"],
    ["--granularity", "element", "--threshold", "0.7", "-d", "double", "-g", "3"],
    ["--granularity", "row", "--threshold", "inf", "-g", "3"],
    ["--granularity", "row", "--threshold=-inf", "-d", "double"],
]


@pytest.mark.parametrize("mask", MASKS, ids=" ".join)
def test_masked_rows_say_what_was_kept_and_travelled(bench, tmp_path, mask):
    path = tmp_path / "b.json"
    line = ["masked_all_reduce", "-b", "1000", "-e", "256K", "-f", "256", "--rival", "gloo"]
    code, out, err = bench(*line, *mask, *QUICK, "--json", str(path))
    assert (code, err) == (0, "")
    rows = rows_of(path)
    assert all(row["nwrong"] == 0 for row in rows)
    by_name = {name: [r for r in rows if r["rival"] == name] for name in (None, "dense")}
    assert len(by_name[None]) == len(by_name["dense"]) == 2
    beneath = [line.split(", ", 1)[1] for line in out.splitlines() if ", kept " in line]
    assert beneath == [
        f"kept {row['kept_percent']:.2f} %, wire {row['wire_bytes']} B, "
        f"dense {row['dense_bytes']} B"
        for row in by_name[None]
    ]
    assert len(table_rows(out)) == 2
    assert out.count("#   dense") == out.count("#   gloo_all_reduce") == 2
    options = flags.parse("x", "", ("mask",), mask[:3] if "=" in mask[2] else mask[:4])
    kept = min(max(1 - options.threshold, 0), 1)
    large = by_name[None][-1]
    assert large["kept_percent"] == pytest.approx(100 * kept, abs=20)
    assert large["threshold"] == options.threshold
    assert by_name["dense"][-1]["out_of_place"]["rival_ratio"] > 0


def test_one_altered_element_of_a_masked_result_is_one_wrong(capsys, tmp_path):
    path = tmp_path / "b.json"
    line = ["-b", "600", "-e", "600", "--json", str(path), *QUICK]
    options = flags.parse("x", "", scenarios.SPOILED_MASK.flags, line)
    assert command.run_bench(scenarios.SPOILED_MASK, options, line) == 1
    capsys.readouterr()
    rows = {row["rival"]: row for row in rows_of(path)}
    assert (rows[None]["out_of_place"]["nwrong"], rows[None]["in_place"]["nwrong"]) == (1, 0)
    assert rows["dense"]["nwrong"] == 0


def test_the_oracle_of_masked_results():
    kept = [torch.tensor([True, False, False]), torch.tensor([True, True, False])]
    values = [torch.arange(6.0).view(3, 2), torch.full((3, 2), 10.0)]
    mean = masked_all_reduce.masked("mean", kept, values)
    assert mean.tolist() == [[5.0, 5.5], [10.0, 10.0], [0.0, 0.0]]
    total = masked_all_reduce.masked("sum", kept, values)
    assert total.tolist() == [[10.0, 11.0], [10.0, 10.0], [0.0, 0.0]]


class OneRank:
    """A world of one, which counts its starts."""

    def __init__(self) -> None:
        self.starts = 0

    def barrier(self) -> None:
        self.starts += 1

    def gather(self, value):
        return [value]


@pytest.mark.parametrize(
    ("repeats_short", "agg_iters", "runs", "starts"),
    [(True, None, 2 + 1 + 4 + 3 * 100, 7), (True, 4, 2 + 3 * 4, 5), (False, None, 2 + 3, 5)],
)
def test_short_calls_are_repeated(repeats_short, agg_iters, runs, starts):
    world, calls = OneRank(), []
    options = Options(iters=3, warmup=2, agg_iters=agg_iters)
    harness.time_runs(world, lambda: calls.append(0), options, repeats_short)
    assert (len(calls), world.starts) == (runs, starts)


def test_long_calls_are_not_repeated():
    world, calls = OneRank(), []

    def run() -> None:
        calls.append(0)
        time.sleep(0.005)

    harness.time_runs(world, run, Options(iters=3, warmup=0), repeats_short=True)
    assert (len(calls), world.starts) == (1 + 3, 4)


@pytest.mark.parametrize(
    ("name", "asked", "chosen"),
    [
        ("send_recv", "gloo", ["gloo_send_recv"]),
        ("reshard", "gloo", ["gloo_all_gather"]),
        ("reshard", "rank0_broadcast,gloo", ["gloo_all_gather", "rank0_broadcast"]),
        ("all_reduce", "gloo", ["gloo_all_reduce"]),
        ("all_reduce", "all", ["gloo_all_reduce"]),
        ("reduce_scatter", "gloo_reduce_scatter", ["gloo_reduce_scatter"]),
        ("all_gather", "gloo", ["gloo_all_gather"]),
        ("barrier", "gloo", ["gloo_barrier"]),
        ("masked_all_reduce", "gloo", ["dense", "gloo_all_reduce"]),
        ("masked_all_reduce", "", ["dense"]),
        ("two_step", "gloo", ["gloo_update"]),
    ],
)
def test_gloo_names_the_rival_of_every_bench(name, asked, chosen):
    assert harness.chosen_rivals(command.load(name), flags.names(asked)) == chosen


BAD = [
    (["all_reduce", "-o", "prod"], "prod is not offered; use sum, max, min, avg or all"),
    (["all_reduce", "-o", "mulsum"], "mulsum is not offered"),
    (["all_reduce", "-o", "mean"], "'mean' is no op; use sum"),
    (["all_reduce", "-d", "f8e4m3"], "sum of float8_e4m3fn is not reduced"),
    (["all_reduce", "-d", "int32", "-o", "avg"], "avg of int32 is not reduced"),
    (["all_reduce", "--bucket", "big"], "'big' is no size"),
    (["all_reduce", "--bucket", "0"], "a bucket of 0 bytes"),
    (["all_reduce", "--sweep", "density"], "'density' is no sweep of all_reduce. Use bucket."),
    (["all_reduce", "--png", "x.png"], "--png without --sweep"),
    (["all_reduce", "--sweep", "bucket", "--png", "x.jpg"], "x.jpg is no PNG"),
    (["all_reduce", "--sweep", "bucket", "--png", "/no/such/x.png"], "its folder does not exist"),
    (["all_reduce", "--sweep", "bucket", "-e", "1K"], "--sweep bucket begins at 256K"),
    (["all_reduce", "--sweep", "bucket", "-d", "all"], "--sweep bucket is of one type and op"),
    (["all_reduce", "--rival", "nccl"], "'nccl' is no rival of all_reduce"),
    (["all_reduce", "-b", "2", "-e", "1"], "the sweep is empty"),
    (["reduce_scatter", "--sweep", "bucket"], "unrecognized arguments: --sweep bucket"),
    (["all_gather", "-o", "sum"], "unrecognized arguments: -o sum"),
    (["masked_all_reduce", "-o", "max"], "-o max is not masked. Use avg or sum."),
    (["masked_all_reduce", "-d", "int32"], "values are floating"),
    (["masked_all_reduce", "--threshold", "nan"], "'nan' is no threshold"),
    (["masked_all_reduce", "--granularity", "column"], "invalid choice: 'column'"),
    (["masked_all_reduce", "--sweep", "bucket"], "is no sweep of masked_all_reduce. Use density."),
    (["scaling", "-g", "1"], "one rank says nothing about more"),
    (["scaling", "-b", "1K"], "-b 1024 is too small"),
    (["two_step", "--model", "gpt-5"], "'gpt-5' is no model"),
    (["two_step", "-g", "2", "--dst", "replicated(3)"], "ranks up to 2, there are 2"),
]


@pytest.mark.parametrize(("arguments", "reason"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_a_wrong_call_is_one_line_and_exit_code_2(bench, arguments, reason):
    code, out, err = bench(*arguments)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1
