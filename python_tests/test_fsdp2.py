"""Modules that torch itself has sharded: FSDP2 on two and four ranks, alone and over tensor
parallelism."""

from __future__ import annotations

import fsdp2_scenarios as scenarios
import pytest
import tiny_models as tiny
from ranks import run_ranks

pytestmark = pytest.mark.python


@pytest.mark.parametrize(("world", "explicit"), [(2, False), (4, True)])
def test_a_sharded_module(tmp_path, world, explicit):
    """Uneven rows, ranks without rows, ties, a scalar that FSDP2 leaves whole; into a generation
    layout and back into the module; with a communicator, and over the default group."""
    received = run_ranks(world, scenarios.shard_and_move, str(tmp_path), explicit)
    last = world - 1
    held_rows = {2: (3, 1, 0, 0), 4: (1, 0, 0, 0)}[world]  # of embed, inner, inner.bias, narrow
    embed, inner = 7 - held_rows[0], 3 - held_rows[1]
    expected = 4 * (embed * 5 + inner * 5 + inner + 1 * 3 + 1)
    assert received[last] == [expected] * 2
    assert received[:last] == [[0, 0]] * last


def test_summands_are_refused(tmp_path):
    for text in run_ranks(2, scenarios.partial_sums_are_refused, str(tmp_path)):
        assert "ranks hold summands of it" in text and "'w'" in text


@pytest.mark.parametrize("vocab", [8, 130])
def test_a_module_sharded_over_tensor_parallelism(tmp_path, vocab):
    facts = tiny.config(vocab=vocab, layers=2, intermediate=6)
    for placements in run_ranks(4, scenarios.shard_twice, str(tmp_path), facts):
        assert placements == ["_StridedShard", "Shard"]
