"""Partitions by length, and micro-batches by token budget."""

import itertools
import random

import pytest

from hybridengine import UsageError
from hybridengine.rlhf.balance import micro_batches, seqlen_balanced_partitions

pytestmark = pytest.mark.python


def _sums(lengths: list[int], parts: list[list[int]]) -> list[int]:
    return [sum(lengths[i] for i in part) for part in parts]


def _covered(parts: list[list[int]], number: int) -> bool:
    return sorted(i for part in parts for i in part) == list(range(number))


def test_the_textbook_example() -> None:
    # Known for the differencing method: 16 and 14, where 15 and 15 exists.
    lengths = [8, 7, 6, 5, 4]
    parts = seqlen_balanced_partitions(lengths, 2)
    assert sorted(_sums(lengths, parts)) == [14, 16]
    assert parts == [sorted(part) for part in parts]


def _best(lengths: list[int], num_partitions: int, equal_size: bool) -> int:
    """The smallest largest sum of all ways to cut."""
    best = sum(lengths)
    for choice in itertools.product(range(num_partitions), repeat=len(lengths)):
        parts = [[i for i, c in enumerate(choice) if c == k] for k in range(num_partitions)]
        if not equal_size or len({len(part) for part in parts}) == 1:
            best = min(best, max(_sums(lengths, parts)))
    return best


@pytest.mark.parametrize(
    ("num_partitions", "equal_size"),
    [(1, False), (2, False), (3, False), (4, False), (1, True), (2, True), (3, True), (6, True)],
)
def test_close_to_the_best_of_all_ways_to_cut(num_partitions: int, equal_size: bool) -> None:
    source = random.Random(num_partitions)
    for _ in range(4):
        lengths = [source.randint(1, 50) for _ in range(6)]
        parts = seqlen_balanced_partitions(lengths, num_partitions, equal_size=equal_size)
        assert _covered(parts, 6) and all(parts)
        best = _best(lengths, num_partitions, equal_size)
        assert max(_sums(lengths, parts)) <= best * 4 / 3
        if equal_size:
            assert {len(part) for part in parts} == {6 // num_partitions}


@pytest.mark.parametrize("equal_size", [False, True])
def test_many_sequences_end_within_one_token(equal_size: bool) -> None:
    source = random.Random(0)
    lengths = [source.randint(1, 512) for _ in range(1024)]
    parts = seqlen_balanced_partitions(lengths, 16, equal_size=equal_size)
    sums = _sums(lengths, parts)
    assert _covered(parts, 1024) and max(sums) - min(sums) <= 1
    assert parts == seqlen_balanced_partitions(lengths, 16, equal_size=equal_size)


def test_more_parts_than_sequences_and_lengths_of_0() -> None:
    assert seqlen_balanced_partitions([5], 3) == [[0], [], []]
    assert seqlen_balanced_partitions([], 2) == [[], []]
    assert seqlen_balanced_partitions([], 2, equal_size=True) == [[], []]
    assert seqlen_balanced_partitions([0, 0, 9], 3) == [[0], [1], [2]]


def test_partitions_refuse_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="5 sequences do not divide into 2 parts"):
        seqlen_balanced_partitions([1] * 5, 2, equal_size=True)
    with pytest.raises(UsageError, match="num_partitions=0 makes no parts"):
        seqlen_balanced_partitions([1], 0)
    with pytest.raises(UsageError, match="sequence 1 has length -3"):
        seqlen_balanced_partitions([1, -3], 1)


@pytest.mark.parametrize("max_tokens", [40, 64, 100, 1000, 10**6])
def test_micro_batches_keep_to_the_budget_and_are_few(max_tokens: int) -> None:
    source = random.Random(max_tokens)
    lengths = [source.randint(1, 40) for _ in range(60)]
    parts = micro_batches(lengths, max_tokens)
    assert _covered(parts, 60) and all(parts)
    assert max(_sums(lengths, parts)) <= max_tokens
    assert len(parts) <= 1.2 * sum(lengths) / max_tokens + 1


@pytest.mark.parametrize("max_tokens", [40, 64, 100, 1000, 10**6])
def test_padded_micro_batches_count_their_padding(max_tokens: int) -> None:
    source = random.Random(max_tokens)
    lengths = [source.randint(1, 40) for _ in range(60)]
    parts = micro_batches(lengths, max_tokens, padded=True)
    assert _covered(parts, 60) and all(parts)
    work = [len(part) * max(lengths[i] for i in part) for part in parts]
    assert max(work) <= max_tokens
    if len(parts) > 4:  # of like length
        assert sum(work) <= 1.3 * sum(lengths)
    more = micro_batches(lengths, max_tokens, min_batches=len(parts) + 3, padded=True)
    assert len(more) == min(60, len(parts) + 3) + max(0, len(parts) + 3 - 60)
    assert _covered(more, 60)
    assert micro_batches([5, 9], 10, min_batches=3, padded=True) == [[0], [1], []]


@pytest.mark.parametrize(
    ("lengths", "max_tokens", "number"),
    [
        ([5, 5, 5, 5], 9, 4),  # no two fit: one a part
        ([5, 5, 5, 5], 10, 2),
        ([4, 4, 4, 4, 4, 4, 4], 11, 4),  # three by their sum, but only two fit in one
        ([0, 0, 0], 1, 1),
        ([0, 0], 0, 1),
    ],
)
def test_the_fewest_micro_batches(lengths: list[int], max_tokens: int, number: int) -> None:
    assert len(micro_batches(lengths, max_tokens)) == number


def test_ranks_agree_on_the_number_of_micro_batches() -> None:
    ranks = [[8, 8, 8], [1, 1], [8]]
    number = max(len(micro_batches(lengths, 8)) for lengths in ranks)
    assert number == 3
    cut = [micro_batches(lengths, 8, min_batches=number) for lengths in ranks]
    assert cut == [[[0], [1], [2]], [[0], [1], []], [[0], [], []]]
    assert micro_batches([], 8, min_batches=2) == [[], []]


def test_micro_batches_refuse_what_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"sequence 1 has 9 tokens: max_tokens=8\. Raise"):
        micro_batches([3, 9], 8)
    with pytest.raises(UsageError, match="min_batches=-1"):
        micro_batches([3], 8, min_batches=-1)
