"""What benchmarks are made of: the sweep of sizes, the table's columns, and data to verify with."""

import numpy as np
import pytest
import torch

from hybridengine._bench import flags, pattern, send_recv, table
from hybridengine.spec import Spec

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
    halves, names, units = table.header()
    assert names.startswith(
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong  "
    )
    assert units == (
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)        "
        "     (us)  (GB/s)  (GB/s)"
    )
    assert halves.index("out-of-place") < halves.index("in-place")
    row = {"size": 33554432, "count": 8388608, "type": "float", "redop": "sum", "root": -1}
    row |= {"rival": None, "out_of_place": _half(1234.54, 27.183, 0)}
    row |= {"in_place": _half(1230.06, 27.276, 0)}
    assert table.row(row).startswith(
        "    33554432       8388608     float     sum      -1   1234.5   27.18   27.18       0   "
        "1230.1   27.28   27.28       0  "
    )
    assert table.row({**row, "in_place": None}).split()[9:13] == ["N/A"] * 4


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
