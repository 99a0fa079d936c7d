"""Layouts that are said box by box."""

from __future__ import annotations

import pytest
import tiny_models as tiny
import torch
from ranks import run_threads

from hybridengine import Communicator, Layout, Spec, UsageError, reshard

pytestmark = pytest.mark.threads

SPEC = Spec.from_tensors(
    [("w", (5, 4), "float32"), ("b", (4,), "bfloat16"), ("s", (), "float32"), ("n", (0, 3), "int8")]
)
WHOLE = {"b": ((0,), (4,)), "s": ((), ()), "n": ((0, 0), (0, 3))}
UNEVEN = {
    0: {"w": ((0, 0), (5, 1)), **WHOLE},
    2: {"w": ((0, 1), (2, 3)), "b": ((0,), (4,))},
    1: {"w": ((2, 1), (3, 3))},
    3: {},
}


def test_it_is_what_was_said():
    layout = Layout.from_boxes(SPEC, UNEVEN, text="mine")
    assert layout.text == "mine" and layout.ranks == [0, 1, 2, 3]
    assert layout.locals(2) == [("w", (2, 3), "float32"), ("b", (4,), "bfloat16")]
    assert layout.locals(3) == [] and layout.num_bytes(1) == 36
    assert layout.pieces(1) == [("w", "w", (2, 1), (3, 3), 0, (3, 1))]
    again = Layout.from_boxes(
        SPEC, {r: {t: (s, n) for t, _, s, n, *_ in layout.pieces(r)} for r in layout.ranks}
    )
    assert [again.pieces(r) for r in range(4)] == [layout.pieces(r) for r in range(4)]


@pytest.mark.parametrize("to", ["replicated(4)", "fsdp2(4)"])
def test_there_and_back(to):
    full = {
        "w": tiny.numbered(5, 4),
        "b": tiny.numbered(4).bfloat16(),
        "s": torch.tensor(3.5),
        "n": torch.zeros(0, 3, dtype=torch.int8),
    }
    layout = Layout.from_boxes(SPEC, UNEVEN)

    def main(comm: Communicator) -> None:
        mine = {
            name: full[name][tuple(slice(a, a + n) for a, n in zip(*box, strict=True))].clone()
            for name, box in UNEVEN[comm.rank].items()
        }
        there = reshard(mine, layout, to, comm=comm)
        expected = full if to == "replicated(4)" else tiny.fsdp2(full, 4, comm.rank)
        tiny.assert_same(there, expected)
        tiny.assert_same(reshard(there, to, layout, comm=comm), mine)

    run_threads(4, main, transport="loopback")


@pytest.mark.parametrize(
    ("boxes", "expected"),
    [
        ({0: {"x": ((0,), (4,))}}, "rank 0 has a box of 'x', which the spec lacks"),
        ({0: {"w": ((0, 0), (6, 4))}}, r"with size \[6, 4\]: it is not within \[5, 4\]"),
        ({0: {"w": ((-1, 0), (5, 4))}}, r"starts at \[-1, 0\] .* not within"),
        ({0: {"w": ((0,), (5,))}}, r"starts at \[0\] with size \[5\]: it is not within"),
        ({0: {"w": 3}}, r"the box of 'w' on rank 0 is 3. Give \(start, size\)"),
        ({0: {"w": ((0, 0), (5, 3)), **WHOLE}}, "'w'"),  # a column that nobody has
        ({0: {"w": ((0, 0), (5, 4))}}, "'b'"),
        ([], r"boxes are a list. Give \{rank: "),
        ({"0": {}}, "'0' is no rank"),
    ],
)
def test_what_cannot_be(boxes, expected):
    with pytest.raises(UsageError, match=expected):
        Layout.from_boxes(SPEC, boxes)
