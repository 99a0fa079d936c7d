"""What benchmarks are made of: the sweep of sizes, the table's columns, and data to verify with."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from hybridengine._bench import command, flags, index, pattern, send_recv, table
from hybridengine._bench.record import Column
from hybridengine.layouts.spec import Spec

pytestmark = pytest.mark.python


def test_sizes_of_a_sweep():
    def sizes(*arguments: str) -> list[int]:
        return flags.parse("x", "", ("sizes",), list(arguments)).sizes()

    assert sizes() == [32 << 20]
    assert sizes("-b", "8", "-e", "128", "-f", "2") == [8, 16, 32, 64, 128]
    assert sizes("-b", "1", "-e", "9", "-i", "3") == [1, 4, 7]
    assert sizes("-b", "1K", "-e", "3000", "-f", "2", "-i", "1") == [1024, 2048]
    assert sizes("-b", "1G") == [1 << 30]
    assert sizes("-b", "0", "-e", "0", "-f", "2") == [0]


def _half(time: float, bandwidth: float, wrong: int) -> dict:
    ratios = {"memcpy_ratio": None, "rival_ratio": 2.5}
    return {"time_us": time, "algbw": bandwidth, "busbw": bandwidth, "nwrong": wrong, **ratios}


def test_the_table_keeps_the_columns_and_widths():
    meaning, halves, names, units = table.header()
    assert names == (
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong"
    )
    assert meaning.startswith("# Beneath a row, out-of-place / in-place: its rate over that of mem")
    assert units == (
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)        "
        "     (us)  (GB/s)  (GB/s)"
    )
    assert halves.index("out-of-place") < halves.index("in-place")
    first, second = (halves.index(name) for name in ("-- out-of-place --", "-- in-place --"))
    assert names.index("time") < first < names.index("#wrong") < names.rindex("time") < second
    row = {"size": 33554432, "count": 8388608, "type": "float", "redop": "sum", "root": -1}
    row |= {"rival": None, "out_of_place": _half(1234.54, 27.183, 0)}
    row |= {"in_place": _half(1230.06, 27.276, 0)}
    assert table.row(row) == (
        "    33554432       8388608     float     sum      -1   1234.5   27.18   27.18       0   "
        "1230.1   27.28   27.28       0"
    )
    assert table.row({**row, "in_place": None}).split()[9:13] == ["N/A"] * 4


def _facts(rival: str | None, case: str | None = None) -> dict:
    row = {"size": 8, "count": 2, "type": "float", "redop": "sum", "root": -1, "case": case}
    halves = {"out_of_place": _half(1234.54, 27.183, 0), "in_place": _half(99.0, 1234.5, 12)}
    return {**row, "rival": rival, **halves}


def test_what_is_no_row_of_nccl_tests_stands_beneath_one():
    ours = _facts(None)
    assert table.lines(ours) == [table.row(ours)]
    ours["in_place"] |= {"memcpy_ratio": 0.914}
    assert table.lines(ours)[1:] == ["#                        - / 0.91 of memcpy"]
    ours["case"] = "rows_tp8"
    column = Column("kept", "%", lambda row: str(row["count"]))
    assert table.lines(ours, (column,))[1:] == [
        "#   rows_tp8             - / 0.91 of memcpy, kept 2 %"
    ]
    assert table.lines(_facts("memcpy")) == []
    (rival,) = table.lines(_facts("dtensor_full_tensor"))
    assert rival == (
        "#   dtensor_full_tensor  2.50 / 2.50 of our time       1234.5   27.18   27.18       0    "
        "99.00  1234.5  1234.5      12"
    )


def test_no_line_is_wider_than_120_columns():
    lines = [*table.header(rivals=True), *table.lines(_facts(None, "x" * 20))]
    lines += table.lines(_facts("dtensor_full_tensor"))
    assert max(map(len, lines)) <= 120
    header = table.header()[2]
    for line in table.lines(_facts("dtensor_full_tensor")):
        assert len(line) == len(header) == 118


def test_more_ranks_than_cores_are_said_by_host():
    def ranks(host: str, count: int, cores: int) -> list[dict]:
        return [{"host": host, "cores": cores}] * count

    assert command._shared_cores(ranks("a", 2, 2) + ranks("b", 1, 2)) == []
    assert command._shared_cores(ranks("a", 2, 2) + ranks("b", 6, 2)) == [
        "6 ranks share the 2 cores of b: with a core each, times would be shorter"
    ]


def test_every_benchmark_has_the_flags_of_its_entry_and_help_that_fits(bench, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name in index.INDEX:
        code, out, _ = bench(name, "-h")
        assert code == 0
        assert max(map(len, out.splitlines())) <= 80
        shown = out.split("\n\n", 2)[2]
        flagged = [line for line in shown.splitlines() if line.startswith("  -")]
        help_of = " ".join(shown.split())
        # Every flag but -h has a default or is required.
        wanted = help_of.count("[default: ") + help_of.count("[required]")
        assert wanted == len(flagged) - 1
    for name in set(index.INDEX) - set(command.OF_THEIR_OWN):
        assert command.load(name).name == name
        assert command.load(name).flags == index.INDEX[name].flags


def test_help_tells_types_and_ranks(bench):
    def words(*line: str) -> str:
        return " ".join(bench(*line, "-h")[1].split())

    reduced = words("all_reduce")
    assert "int8, uint8, int32, int64, half, float, double, bfloat16, f8e4m3, f8e5m2 or" in reduced
    assert "-g, --ngpus N ranks, processes of this host [default: 2]" in reduced
    assert "this host [default: as many as the layouts name]" in words("reshard")
    assert "this host [default: 4]" in words("two_step")


@pytest.mark.parametrize("line", [["bench"], ["bench", "-h"], ["bench", "all_reduce", "-h"]])
def test_help_imports_nothing_that_takes_long(line):
    code = (
        "import sys; from hybridengine.command import cli; code = cli.run(sys.argv[1:]);"
        "print([name for name in ('torch', 'matplotlib', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *line], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(0.5, "0.50"), (99.99, "99.99"), (1234.54, "1234.5"), (123456.7, "123457")],
)
def test_times_fit(microseconds, text):
    assert table.time_text(microseconds) == text


@pytest.mark.parametrize(
    ("gigabytes", "text"), [(0, "0.00"), (999.994, "999.99"), (1234.56, "1234.6"), (1e5, "100000")]
)
def test_bandwidths_fit(gigabytes, text):
    assert table.bandwidth_text(gigabytes) == text


def values(name: str, shape: tuple[int, ...], dtype: torch.dtype, number: int) -> np.ndarray:
    """A whole tensor by the pattern, as integers."""
    spec = Spec.from_tensors([(name, shape, dtype)])
    tensors = {name: torch.zeros(shape, dtype=dtype)}
    pattern.Pattern(number).fill(send_recv.on_rank(spec, 0), 0, tensors)
    return pattern.as_bits(tensors[name]).numpy().copy()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64])
def test_no_value_is_zero_poison_or_that_of_the_round_before(dtype):
    rounds = [values("a", (5000,), dtype, number) for number in range(3)]
    assert all((each != 0).all() for each in rounds)
    assert (rounds[0] != rounds[1]).all() and (rounds[1] != rounds[2]).all()
    poisoned = torch.zeros(5000, dtype=dtype)
    pattern.poison(poisoned)
    assert all((each != pattern.as_bits(poisoned).numpy()).all() for each in rounds)
    assert (values("b", (5000,), dtype, 0) != rounds[0]).mean() > 0.9
    assert (rounds[0][1:] != rounds[0][:-1]).mean() > 0.9


def test_values_follow_from_the_place_in_the_whole_tensor():
    """Also beyond the table's period, which is prime and above one million."""
    long = values("a", (1_100_000 * 2 + 3,), torch.int16, 1)
    period = 1_048_573
    assert (long[:period] == np.resize(long[:period], period)).all()
    assert (long[period:] == long[: len(long) - period]).all()
    whole = values("a", (7, 5, 4), torch.int16, 1)
    assert (whole == long[: 7 * 5 * 4]).all()
