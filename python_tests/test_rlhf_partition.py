"""Which rank computes which rows: nothing lost, equal work, the same mini-batches for any n."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridengine.rlhf.trainer.partition import partition, spread, spread_groups

pytestmark = pytest.mark.python


@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), min_size=1, max_size=40),
    mini=st.integers(1, 5),
    ranks=st.integers(1, 4),
    seed=st.integers(0, 3),
)
def test_rows_are_cut_once(rows: list[tuple[int, int]], mini: int, ranks: int, seed: int) -> None:
    groups, lengths = [g for g, _ in rows], [n for _, n in rows]
    found = partition(groups, lengths, num_places=ranks, mini_batch_groups=mini, seed=seed)
    assert sorted(row for part in found.places for row in part) == list(range(len(rows)))
    for group in set(groups):
        of_group = [row for row in range(len(rows)) if groups[row] == group]
        assert len({found.mini_batch[row] for row in of_group}) == 1
    assert found.num_groups == len(set(groups))
    numbers = dict(zip(groups, found.group, strict=True))
    assert [numbers[group] for group in groups] == found.group
    assert sorted(numbers.values()) == list(range(found.num_groups))
    assert found.num_mini_batches == -(-len(set(groups)) // mini)
    for number in range(found.num_mini_batches):
        inside = {groups[row] for row in range(len(rows)) if found.mini_batch[row] == number}
        assert 1 <= len(inside) <= mini
    alone = partition(groups, lengths, num_places=1, mini_batch_groups=mini, seed=seed)
    assert (alone.mini_batch, alone.group) == (found.mini_batch, found.group)


@pytest.mark.parametrize(
    ("prompts", "ranks", "n"), [(32, 64, 16), (8, 8, 16), (12, 8, 8), (4, 8, 64), (1, 3, 5)]
)
def test_no_rank_is_idle_in_a_mini_batch(prompts: int, ranks: int, n: int) -> None:
    """Also where prompts are fewer than ranks: the rows of a group go to several."""
    source = random.Random(0)
    groups = [group for group in range(prompts * 4) for _ in range(n)]
    lengths = [source.randint(100, 4000) for _ in groups]
    found = partition(groups, lengths, num_places=ranks, mini_batch_groups=prompts, seed=0)
    for number in range(found.num_mini_batches):
        work = [
            sum(lengths[row] for row in rows if found.mini_batch[row] == number)
            for rows in found.places
        ]
        assert min(work) > 0
        if n * prompts >= 8 * ranks:
            assert max(work) <= 1.05 * sum(work) / ranks


def test_ranks_get_about_the_same_work() -> None:
    lengths = [100, 1, 1, 98, 50, 50, 49, 51]
    found = partition(range(8), lengths, num_places=2, mini_batch_groups=4, seed=0)
    totals = [sum(lengths[row] for row in part) for part in found.places]
    assert max(totals) - min(totals) <= 4


def test_another_seed_is_another_order() -> None:
    orders = [
        partition(range(16), [1] * 16, num_places=2, mini_batch_groups=4, seed=seed).mini_batch
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]


@given(lengths=st.lists(st.integers(0, 50), max_size=40), ranks=st.integers(1, 5))
def test_rows_are_spread_evenly(lengths: list[int], ranks: int) -> None:
    parts = spread(lengths, ranks)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    assert all(part == sorted(part) for part in parts)
    counts, totals = [len(p) for p in parts], [sum(lengths[row] for row in p) for p in parts]
    assert max(counts) - min(counts) <= 1
    assert max(totals) - min(totals) <= max(lengths, default=0)


@given(
    sizes=st.lists(st.integers(1, 9), max_size=12),
    lengths=st.integers(1, 50),
    ranks=st.integers(1, 5),
)
def test_groups_stay_together_where_there_is_one_for_every_rank(
    sizes: list[int], lengths: int, ranks: int
) -> None:
    groups = [7 * group for group, size in enumerate(sizes) for _ in range(size)]
    parts = spread_groups(groups, [lengths] * len(groups), ranks)
    assert sorted(row for part in parts for row in part) == list(range(len(groups)))
    assert all(part == sorted(part) for part in parts)
    homes = [{groups[row] for row in part} for part in parts]
    if len(sizes) >= ranks:
        assert sum(map(len, homes)) == len(sizes)  # no group is on two ranks
        assert max(map(len, homes)) - min(map(len, homes)) <= 1


def test_few_large_groups_are_divided_so_that_every_rank_has_rows() -> None:
    for groups, ranks in ((1, 2), (3, 4), (4, 8)):
        parts = spread_groups(
            [g for g in range(groups) for _ in range(64)], [9] * 64 * groups, ranks
        )
        assert min(map(len, parts)) > 0
    assert spread_groups([0, 0, 1], [1, 1, 1], 5) == [[0], [1], [2], [], []]
    assert spread_groups([], [], 2) == [[], []]
