"""Pieces cut into parts: every rank gets its rows, and fetches no other's."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from rlhf_local_roles import _Held, _Values

from hybridengine import UsageError
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.trainer.partition import partition, spread_groups
from hybridengine.rlhf.trainer.rows import Rows
from hybridengine.rlhf.workers.cutting import with_parts
from hybridengine.rlhf.workers.reference import Pick, Reference, _with_values, cut_rows, leaves

pytestmark = pytest.mark.python


class _Store:
    """Pieces in this process, and how they are cut."""

    def __init__(self) -> None:
        self.cuts: list[int] = []  # parts, by piece that was cut

    def put(self, rows: Batch) -> Reference:
        return Reference(_Held(rows))

    def cut(self, piece: Reference, parts: list[list[int]]) -> list[Reference]:
        self.cuts.append(len(parts))
        return [self.put(part) for part in cut_rows(piece.ref.value, parts)]


def _fetched(argument: Any) -> int:
    """Tokens of all that a rank asks the store for."""
    refs = {(leaf.reference if isinstance(leaf, Pick) else leaf).ref for leaf in leaves(argument)}
    return sum(int(ref.value.lengths.sum()) for ref in refs)


def _made(groups: int, n: int) -> tuple[Batch, list[int]]:
    source = random.Random(0)
    lengths = torch.tensor([source.randint(1, 30) for _ in range(groups * n)])
    number = torch.arange(len(lengths))
    return Batch(lengths, {"ids": number.repeat_interleave(lengths)}, {"row": number}), [
        row // n for row in number.tolist()
    ]


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_what_moves_does_not_grow_with_the_ranks(ranks: int) -> None:
    """Rows from where they were generated to where they train: each moves once."""
    batch, groups = _made(groups=128, n=8)
    lengths = batch.lengths.tolist()
    made, store = spread_groups(groups, lengths, ranks), _Store()
    rows = Rows.of([store.put(batch.select(part)) for part in made], made)
    cut = partition(groups, lengths, num_places=ranks, mini_batch_groups=32, seed=1)
    whole = [rows.picks(part) for part in cut.places]
    parts = with_parts(whole, store.cut)
    own = [sum(lengths[row] for row in part) for part in cut.places]
    assert [_fetched(part) for part in parts] == own  # in all: the batch
    # Whole pieces would have been some ranks times the batch.
    assert sum(map(_fetched, whole)) > min(ranks, 20) / 2 * sum(own)
    assert len(store.cuts) == ranks and sum(store.cuts) <= min(len(lengths), ranks * ranks)
    for part, expected in zip(parts, cut.places, strict=True):
        found = _with_values(part, _Values())
        assert found["row"].tolist() == expected
        assert torch.equal(found["ids"], batch.select(expected)["ids"])


def test_a_piece_of_one_rank_stays_whole() -> None:
    batch, _ = _made(groups=2, n=3)
    store = _Store()
    one, two, three = (store.put(batch) for _ in range(3))
    arguments = [
        ([Pick(one, [4, 0])], {"x": three}),
        ([Pick(two, [1])], [Pick(one, []), Pick(two, [3, 2])]),
        7,
    ]
    found = with_parts(arguments, store.cut)
    assert store.cuts == [2]  # of `one`, which two ranks name: of the other pieces nothing is cut
    assert found[0][1] == {"x": three} and found[2] == 7
    assert found[1][0] == [Pick(two, [1])] and found[1][1][1] == Pick(two, [3, 2])
    (mine,), (theirs, _) = found[0][0], found[1][1]
    assert _with_values(mine, _Values())["row"].tolist() == [4, 0]
    assert _with_values(theirs, _Values())["row"].tolist() == []


def test_rows_that_a_rank_names_twice_and_in_turn() -> None:
    batch, _ = _made(groups=2, n=3)
    store = _Store()
    a, b = store.put(batch), store.put(batch.with_rows(row=batch["row"] + 10))
    mine = [Pick(a, [5]), Pick(b, [0, 1]), Pick(a, [5, 2]), b]
    found, other = with_parts([mine, [Pick(a, [0]), Pick(b, [3])]], store.cut)
    assert _with_values(found, _Values())["row"].tolist() == [5, 10, 11, 5, 2, *range(10, 16)]
    assert _with_values(other, _Values())["row"].tolist() == [0, 13]


def test_only_batches_are_cut() -> None:
    with pytest.raises(UsageError, match="picked from a list: only a Batch has rows"):
        cut_rows([1, 2], [[0], [1]])
