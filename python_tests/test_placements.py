"""What DTensors say of themselves: read into a layout, and compared with the layout that a caller
names, on every rank, before anything moves."""

from __future__ import annotations

import placement_scenarios as scenarios
import pytest
import tiny_models as tiny
import torch
from ranks import run_ranks, run_threads

from hybridengine import Communicator, Layout, UsageError, reshard
from hybridengine.layouts.placements import MeshPlan, Placement, _cuts, own_boxes, placed_layout
from hybridengine.layouts.spec import Spec

pytestmark = pytest.mark.python


def test_dtensors_that_lie_otherwise_than_the_layout_says(tmp_path):
    """Shapes and types alone fit in each of these, and ranks would get rows of others."""
    answers = run_ranks(4, scenarios.placed_otherwise, str(tmp_path))
    for found in answers:
        assert found == answers[0]
        for name, (_, _, placements, called) in scenarios.CASES.items():
            for side, text in zip(("model", "out"), found[name], strict=True):
                assert f"{side} tensor 'w'" in text, name
                assert repr(placements[0]) in text and f"{called} has [" in text, name
                assert "Layout.of(model)" in text
    assert "ranks [3, 2, 1, 0]" in answers[0]["other order"][0]


def test_a_module_that_is_cut_in_another_order(tmp_path):
    facts = tiny.config(vocab=8)
    texts = run_ranks(4, scenarios.cut_by_data_parallel_ranks_first, str(tmp_path), facts)
    for text in texts:
        assert text == texts[0]
        assert "(Shard(dim=0), Shard(dim=0))" in text
        assert "is [2:4, 0:8] of the whole on rank 1" in text
        assert "fsdp2(2,tp=2) has [4:6, 0:8] there" in text


def test_a_layout_read_from_a_sharded_module(tmp_path):
    """Every rank reads the same, of all ranks, without a word between them."""
    blobs = run_ranks(4, scenarios.read_what_fsdp2_made, str(tmp_path))
    assert all(each == blobs[0] for each in blobs)


class _Placed:
    """What torch's Shard, _StridedShard and Replicate say."""

    def __init__(self, dim: int | None, split_factor: int = 1) -> None:
        self.dim, self.split_factor = dim, split_factor

    def is_replicate(self) -> bool:
        return self.dim is None


class Shard(_Placed): ...


class _StridedShard(_Placed): ...


@pytest.mark.parametrize(
    ("placements", "sizes", "expected"),
    [
        ([Shard(0)], (4,), ((0, 0),)),
        ([Shard(0), Shard(0)], (2, 3), ((0, 0), (0, 1))),
        ([Shard(1), Shard(0)], (2, 3), ((1, 0), (0, 1))),
        ([Shard(None), Shard(-1)], (2, 3), ((1, 1),)),
        ([_StridedShard(0, 3), Shard(0)], (2, 3), ((0, 1), (0, 0))),
        ([_StridedShard(0, 6), Shard(0), Shard(0)], (5, 2, 3), ((0, 1), (0, 2), (0, 0))),
        ([_StridedShard(0, 3), Shard(1), Shard(0)], (5, 2, 3), ((1, 1), (0, 2), (0, 0))),
        ([_StridedShard(0, 2), Shard(0), Shard(0)], (5, 2, 3), ((0, 1), (0, 0), (0, 2))),
    ],
)
def test_the_order_of_cuts(placements, sizes, expected):
    assert _cuts("w", placements, sizes, 2) == expected


def test_a_split_factor_that_no_axes_have():
    with pytest.raises(UsageError, match=r"'w' is a strided shard with split factor 4.*\[2, 3\]"):
        _cuts("w", [_StridedShard(0, 4), Shard(0)], (2, 3), 2)


def test_tensors_of_one_kind_that_are_cut_otherwise():
    """One layer of many may be ignored, or cut along another dim: it keeps its own cuts."""
    rows = [(f"layers.{i}.w", (4, 6), "float32") for i in range(12)]
    mesh = MeshPlan((2,), (0, 1))
    placements = {
        name: Placement(shape, mesh, ((int(i == 1), 0),), 1, "")
        for i, (name, shape, _) in enumerate(rows)
        if i != 10
    }
    boxes = own_boxes(placements)
    layout = placed_layout(rows, placements, Spec.from_tensors(rows).core)
    pieces = {tensor: (start, size) for tensor, _, start, size, *_ in layout.pieces(1)}
    assert pieces == boxes | {"layers.10.w": ((0, 0), (4, 6))}
    assert boxes["layers.1.w"] == ((0, 3), (4, 3)) and boxes["layers.11.w"] == ((2, 0), (2, 6))


def test_nothing_to_read():
    with pytest.raises(UsageError, match=r"no tensor is a DTensor.*Call fully_shard"):
        Layout.of(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("dst", ["replicated(2)", "vllm(tp=2)", "hf"])
def test_a_module_that_was_never_sharded(dst):
    """Each rank holds all of it, and doubled tensors would arrive."""
    from transformers import AutoConfig, AutoModelForCausalLM

    facts = tiny.config(vocab=128) | {"model_type": "llama"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**facts))
    rows = model.model.embed_tokens.weight.shape

    def main(comm: Communicator) -> str:
        with pytest.raises(UsageError) as raised:
            reshard(model, "fsdp2(2)", dst, comm=comm)
        reshard(model, "replicated(2)", "hf", comm=comm)
        return str(raised.value)

    for text in run_threads(2, main, transport="loopback"):
        assert f"'model.embed_tokens.weight' would be [{2 * rows[0]}, {rows[1]}]" in text
        assert f"the config says [{rows[0]}, {rows[1]}], which every rank holds whole" in text
        assert "Call fully_shard(model) first, or pass src='replicated(2)'" in text


def test_a_module_without_config_that_was_never_sharded():
    model = torch.nn.Linear(4, 4)

    def main(comm: Communicator) -> str:
        with pytest.raises(UsageError) as raised:
            reshard(model, "fsdp2(2)", "replicated(2)", comm=comm)
        chunks = {name: tiny.chunk(t, 2, comm.rank) for name, t in model.state_dict().items()}
        tiny.assert_same(
            reshard(chunks, "fsdp2(2)", "replicated(2)", comm=comm), model.state_dict()
        )
        return str(raised.value)

    for text in run_threads(2, main, transport="loopback"):
        assert "no tensor of the module is a DTensor" in text and "dict(model.state_dict())" in text


def test_a_model_of_other_shapes_than_its_config_says():
    from transformers import AutoConfig, AutoModelForCausalLM

    facts = tiny.config(vocab=128) | {"model_type": "llama"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**facts))
    model.lm_head = torch.nn.Linear(model.lm_head.in_features, 130, bias=False)

    def main(comm: Communicator) -> None:
        with pytest.raises(UsageError, match=r"'lm_head.weight' is \[130, .*its config says \[128"):
            reshard(model, "replicated(2)", "vllm(tp=2)", comm=comm)

    run_threads(2, main, transport="loopback")
