"""The attention of packed rows: its work, counted, and the kernels that run it on a GPU."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rlhf_training_scenarios import TEMPERATURE, make, rollouts

from hybridengine.rlhf.balance import like_lengths, micro_batches
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.roles import Sharding
from hybridengine.rlhf.training import attention
from hybridengine.rlhf.training.packing import PackedRows
from hybridengine.rlhf.training.passes import Passes

pytestmark = pytest.mark.python

CPU = torch.device("cpu")


def _batch(lengths: list[int], vocabulary: int = 13) -> Batch:
    total = sum(lengths)
    mask = torch.ones(total, dtype=torch.bool)
    batch = Batch(torch.tensor(lengths), {"ids": torch.arange(total) % vocabulary, "mask": mask})
    mask[batch.first_tokens()] = False
    return batch


@pytest.mark.parametrize("rows", [512, 2048])
@pytest.mark.parametrize("budget", [16384, 65536])
def test_work_follows_the_squares_of_log_normal_lengths(rows: int, budget: int) -> None:
    """Every row as long as the longest of its micro-batch would be some 9 times the squares."""
    source = random.Random(0)
    lengths = [min(8192, int(source.lognormvariate(6.5, 0.9)) + 20) for _ in range(rows)]
    padded = work = 0
    for part in micro_batches(lengths, budget):
        inside = [lengths[row] for row in part]
        padded += len(part) * max(inside) ** 2
        work += PackedRows.of(_batch(inside), CPU).pairs
    squares = sum(length**2 for length in lengths)
    assert work <= 1.3 * squares
    assert padded > 4 * squares


def test_one_long_row_among_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model really computes, layer by layer."""
    calls: list[tuple[int, int]] = []
    plain = F.scaled_dot_product_attention

    def counted(query: torch.Tensor, *args: Any, **facts: Any) -> torch.Tensor:
        calls.append((query.shape[0], query.shape[2]))
        return plain(query, *args, **facts)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    lengths = [16] * 32 + [512] + [16] * 32
    passes = Passes(make(max_position_embeddings=1024), Sharding(dtype="float64"))
    passes.log_probs_of(_batch(lengths)).sum().backward()
    assert calls == [(1, 512), (64, 16)] * (len(calls) // 2) and calls
    assert sum(rows * width**2 for rows, width in calls[:2]) <= 1.1 * sum(n**2 for n in lengths)


def test_buckets_are_worth_their_calls() -> None:
    assert like_lengths([3, 3, 3], 0) == [[0, 1, 2]]
    assert like_lengths([9, 3, 9, 3], 0) == [[0, 2], [1, 3]]
    assert like_lengths([9, 3, 9, 3], 1000) == [[0, 1, 2, 3]]
    assert like_lengths([5, 4, 100, 99], 300) == [[2, 3], [0, 1]]
    assert like_lengths([], 10) == []


def test_buckets_are_the_best_of_all_runs() -> None:
    source = random.Random(1)
    for cost in (0, 20, 200):
        lengths = [source.randint(1, 20) for _ in range(8)]
        order = sorted(lengths)

        def total(cuts: int, order: list[int] = order, cost: int = cost) -> int:
            work, run = 0, 0
            for at, length in enumerate(order):
                run += 1
                if at == 7 or cuts >> at & 1:
                    work, run = work + run * length**2 + cost, 0
            return work

        buckets = like_lengths(lengths, cost)
        assert sorted(row for bucket in buckets for row in bucket) == list(range(8))
        found = sum(len(b) * max(lengths[row] for row in b) ** 2 + cost for b in buckets)
        assert found == min(total(cuts) for cuts in range(128))


@pytest.mark.parametrize(
    ("device", "dtype", "installed", "expected"),
    [
        ("cpu", torch.bfloat16, True, attention.PACKED),
        ("cuda", torch.bfloat16, True, attention.FLASH),
        ("cuda", torch.float32, True, attention.FLEX),
        ("cuda", torch.bfloat16, False, attention.FLEX),
        ("cuda", torch.float64, True, attention.PACKED),
    ],
)
def test_which_attention_runs(
    device: str,
    dtype: torch.dtype,
    installed: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers.utils import import_utils

    monkeypatch.setattr(import_utils, "is_flash_attn_2_available", lambda: installed)
    assert attention.chosen(make(), torch.device(device), dtype) == expected


def _expected(batch: Batch) -> torch.Tensor:
    return Passes(make(), Sharding(dtype="float64"), TEMPERATURE).log_probs_of(batch).detach()


@pytest.mark.filterwarnings("ignore")  # torch's own, while it traces
@torch.no_grad()
def test_flex_attention_finds_the_rows_by_their_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask that transformers makes of the arguments, with torch's plain form of the kernel."""
    from torch.nn.attention.flex_attention import flex_attention
    from transformers.integrations import flex_attention as integration

    def plain(query: Any, key: Any, value: Any, training: bool = False, **facts: Any) -> Any:
        return flex_attention(query, key, value, **facts)

    monkeypatch.setattr(integration, "compile_friendly_flex_attention", plain)
    batch = rollouts()
    passes = Passes(make(), Sharding(dtype="float64"), TEMPERATURE)
    passes.module.set_attn_implementation(attention.FLEX)
    assert "packed_rows" not in attention.packed_arguments(passes.module, batch, CPU)
    torch.testing.assert_close(passes.log_probs_of(batch), _expected(batch), rtol=1e-6, atol=1e-7)


@torch.no_grad()
def test_flash_attention_is_told_where_rows_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel runs on GPUs only: in its place one row after the other, cut where it is told."""
    from transformers import AttentionInterface

    def by_rows(
        module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **facts: Any
    ) -> tuple[torch.Tensor, None]:
        ends = facts["cu_seq_lens_q"].tolist()
        assert facts["cu_seq_lens_k"].tolist() == ends and mask is None
        assert facts["max_length_q"] == facts["max_length_k"] == max(rollouts().lengths)
        parts = [
            F.scaled_dot_product_attention(
                *(each[:, :, start:end] for each in (query, key, value)),
                is_causal=True,
                scale=scaling,
                enable_gqa=True,
            )
            for start, end in itertools.pairwise(ends)
        ]
        return torch.cat(parts, 2).transpose(1, 2), None

    monkeypatch.setitem(AttentionInterface._global_mapping, attention.FLASH, by_rows)
    batch = rollouts()
    passes = Passes(make(), Sharding(dtype="float64"), TEMPERATURE)
    for module in (passes.module, passes.module.base_model):
        module.config._attn_implementation_internal = attention.FLASH
    torch.testing.assert_close(passes.log_probs_of(batch), _expected(batch), rtol=1e-6, atol=1e-7)
