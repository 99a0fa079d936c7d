"""shards: what a rank reads of a checkpoint, and that a comparison notices what is wrong."""

import pytest
import torch
from small_checkpoint import write_checkpoint

from hybridengine.layouts.planning import bind_both
from hybridengine.models.models import resolve
from hybridengine.models.shards import count_mismatched, load_shards
from hybridengine.tensors import num_different

EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return resolve(write_checkpoint(tmp_path_factory.mktemp("checkpoint")))


def bits(tensor):
    return tensor.contiguous().view(torch.int16)


def test_a_rank_reads_its_own_rows(model):
    layout, _ = bind_both(model.spec, "fsdp2(4)", "hf")
    whole = model.open().tensor(EMBEDDING)
    begin = 0
    for rank in range(4):
        shard = load_shards(model.open(), layout, rank)[EMBEDDING]
        rows = whole[begin : begin + len(shard)]
        assert torch.equal(bits(shard), bits(rows))
        begin += len(shard)
    assert begin == 190


def test_a_fused_shard_holds_its_heads_and_padding_is_zero(model):
    layout, _ = bind_both(model.spec, "vllm(tp=3)", "hf")
    checkpoint = model.open()
    shards = load_shards(checkpoint, layout, 2)
    prefix = "model.layers.1.self_attn."
    parts = [checkpoint.tensor(f"{prefix}{part}_proj.weight") for part in "qkv"]
    expected = torch.cat([part[len(part) * 2 // 3 :] for part in parts])
    assert torch.equal(bits(shards[f"{prefix}qkv_proj.weight"]), bits(expected))
    table = shards[EMBEDDING]
    assert table.shape == (64, 36)
    assert torch.equal(bits(table[:62]), bits(checkpoint.tensor(EMBEDDING)[128:]))
    assert not bits(table[62:]).any()


def test_ticks_add_up_and_other_ranks_hold_nothing(model):
    layout, _ = bind_both(model.spec, "vllm(tp=3)@1-3", "hf")
    sizes = []
    load_shards(model.open(), layout, 1, sizes.append)
    assert sum(sizes) == layout.num_bytes(1)
    assert load_shards(model.open(), layout, 0) == {}
    assert count_mismatched(model.open(), layout, 0, {}) == 0


@pytest.mark.parametrize(
    ("name", "place", "wrong"),
    [
        (EMBEDDING, (0, 0), 1),
        (EMBEDDING, (63, slice(3)), 3),  # padding
        ("model.layers.0.self_attn.qkv_proj.weight", (19, 35), 1),
        ("model.norm.weight", (slice(None),), 36),
    ],
)
def test_every_wrong_element_is_counted(model, name, place, wrong):
    layout, _ = bind_both(model.spec, "vllm(tp=3)", "hf")
    shards = load_shards(model.open(), layout, 2)
    assert count_mismatched(model.open(), layout, 2, shards) == 0
    bits(shards[name])[place] ^= 1
    assert count_mismatched(model.open(), layout, 2, shards) == wrong


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (torch.tensor(1.5), torch.tensor(1.5), 0),
        (torch.tensor(0.0), torch.tensor(-0.0), 1),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 2.0]), 1),
        (torch.zeros(0, 3), torch.zeros(0, 3), 0),
        (torch.arange(6).reshape(2, 3), torch.arange(6).reshape(3, 2).T.reshape(2, 3), 4),
        (torch.ones(3, 2, dtype=torch.float64).T, torch.zeros(2, 3, dtype=torch.float64), 6),
        (torch.tensor([True, False]), torch.tensor([True, True]), 1),
        (torch.ones(3, dtype=torch.float8_e5m2), torch.ones(3, dtype=torch.float8_e5m2), 0),
    ],
)
def test_elements_are_compared_by_their_bits(left, right, expected):
    assert num_different(left, right) == expected
