"""Batches against plain lists."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridengine import UsageError
from hybridengine.rlhf.batch import Batch

pytestmark = pytest.mark.python

_ROWS = st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=6)


def _batch(rows: list[list[int]]) -> Batch:
    flat = torch.tensor([token for row in rows for token in row], dtype=torch.int64)
    return Batch(
        torch.tensor([len(row) for row in rows], dtype=torch.int64),
        {"ids": flat, "pairs": torch.stack([flat, flat + 1], 1)},
        {"group": torch.arange(len(rows))},
        {"prompt": [str(row) for row in rows]},
    )


def _lists(batch: Batch) -> list[list[int]]:
    return [part.tolist() for part in batch["ids"].split(batch.lengths.tolist())]


@given(rows=_ROWS, data=st.data())
def test_rows_are_picked_like_items_of_a_list(rows: list[list[int]], data: st.DataObject) -> None:
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8) if rows else st.just([]))
    batch = _batch(rows).select(picked)
    assert _lists(batch) == [rows[i] for i in picked]
    assert batch["group"].tolist() == picked
    assert batch["prompt"] == [str(rows[i]) for i in picked]
    assert torch.equal(batch["pairs"][:, 1], batch["ids"] + 1)


@given(parts=st.lists(_ROWS, min_size=1, max_size=4))
def test_batches_are_joined_like_lists(parts: list[list[list[int]]]) -> None:
    joined = Batch.concat([_batch(rows) for rows in parts])
    assert _lists(joined) == [row for rows in parts for row in rows]


@given(rows=_ROWS.filter(bool))
def test_padding_is_undone(rows: list[list[int]]) -> None:
    batch = _batch(rows)
    padded = batch.padded("ids", -1)
    width = max(map(len, rows))
    assert padded.tolist() == [row + [-1] * (width - len(row)) for row in rows]
    assert torch.equal(batch.flat(padded), batch["ids"])
    pairs = batch.padded("pairs")
    assert pairs.shape == (len(rows), width, 2)
    assert torch.equal(batch.flat(pairs), batch["pairs"])


def test_padding_carries_gradients() -> None:
    batch = _batch([[1, 2], [3]])
    values = torch.arange(3.0, requires_grad=True)
    batch.flat(batch.pad(values) * 2).sum().backward()
    assert values.grad is not None and values.grad.tolist() == [2.0, 2.0, 2.0]


def test_last_tokens() -> None:
    assert _batch([[1, 2], [3], [4, 5, 6]]).last_tokens().tolist() == [1, 2, 5]


def test_columns() -> None:
    batch = _batch([[1, 2], [3]]).with_rows(scores=torch.tensor([0.5, 1.0]))
    assert "scores" in batch and "values" not in batch
    assert batch.keep("ids", "absent")._names() == {"ids"}
    with pytest.raises(UsageError, match="no column 'values': it has"):
        batch["values"]
    with pytest.raises(UsageError, match="'values' has 2 entries for 3 tokens"):
        batch.with_tokens(values=torch.zeros(2))
    with pytest.raises(UsageError, match="'group' has 1 entries for 2 rows"):
        batch.with_rows(group=torch.zeros(1))


def test_batches_that_disagree_are_not_joined() -> None:
    one = _batch([[1]])
    with pytest.raises(UsageError, match="different columns"):
        Batch.concat([one, one.keep("ids")])
    assert _lists(Batch.concat([one, _batch([]).keep("ids")])) == [[1]]
    with pytest.raises(UsageError, match="no batch"):
        Batch.concat([])


def test_columns_of_the_same_rows_are_merged() -> None:
    batch = _batch([[1, 2], [3]])
    other = Batch(batch.lengths, {"values": torch.zeros(3)}, {"scores": torch.ones(2)})
    merged = batch.merged(other)
    assert merged._names() == {*batch._names(), "values", "scores"}
    with pytest.raises(UsageError, match="not about the same rows"):
        batch.merged(other.select([1, 0]))
