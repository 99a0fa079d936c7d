"""explain: units, and tables of pairs that stay readable."""

import io

import pytest
from rich.console import Console

from hybridengine.command import explain
from hybridengine.layouts.planning import bind_both, plan
from hybridengine.layouts.spec import Spec
from hybridengine.wording import human_bytes

pytestmark = pytest.mark.python


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9994, "9.99 kB"),
        (9996, "10.0 kB"),
        (99_960, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (3_814_697_266, "3.81 GB"),
        (10**18, "1000 PB"),
    ],
)
def test_bytes_for_people(count, text):
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "1 B"), (1023, "1023 B"), (1 << 10, "1 KiB"), (32 << 20, "32 MiB"), (3 << 30, "3 GiB")],
)
def test_buckets_for_people(count, text):
    assert explain.bucket_text(count) == text


def rendered(src: str, dst: str) -> str:
    """The plan of one matrix of 5000 float32 rows of a kilobyte."""
    spec = Spec.from_tensors([("w", (5000, 250), "float32")])
    source, target = bind_both(spec, src, dst)
    facts = explain.plan_facts("one", source, target, plan(spec, source, target), 32 << 20)
    out = io.StringIO()
    explain.render_plan(facts, Console(file=out, width=80))
    return out.getvalue()


def test_few_ranks_are_a_matrix():
    text = rendered("fsdp2(2)", "replicated(2)@1-2")
    assert "from \\ to        1        2" in text
    assert "0  2.50 MB  2.50 MB" in text
    assert "1        -  2.50 MB" in text
    assert "receives 7.50 MB of 7.50 MB bound (ratio 1.00)" in text


def test_ranks_with_the_same_numbers_share_a_row():
    text = rendered("fsdp2(4)", "fsdp2(4)@4-7")
    assert "  0-3       0 B      0 B  1.25 MB" in text
    assert "  4-7   1.25 MB  1.25 MB      0 B" in text


def test_many_ranks_have_a_line_per_sender():
    text = rendered("replicated(1)@20", "fsdp2(10)")
    assert "20  500 kB to 0-9" in text


@pytest.mark.parametrize("receivers", [7, 8])
def test_no_cell_is_cut_at_eighty_columns(receivers):
    text = rendered("fsdp2(3)", f"replicated({receivers})")
    assert "\u2026" not in text
    assert all(len(line) <= 160 for line in text.splitlines())
