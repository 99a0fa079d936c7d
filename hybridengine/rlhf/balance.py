"""balance: a batch of sequences cut into parts of about equal work.

Pure functions of the lengths alone: ranks that know all lengths find the same parts without
talking. A part is a list of indices into the lengths, ascending. Nothing here touches a tensor.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

import numpy as np

from hybridengine._core import UsageError

_Part = tuple[int, list[int]]  # total length, indices


def seqlen_balanced_partitions(
    lengths: Sequence[int], num_partitions: int, *, equal_size: bool = False
) -> list[list[int]]:
    """Cuts the sequences into `num_partitions` parts whose total lengths are close together.

    Largest differencing method (Karmarkar and Karp 1982). A *split* is a tuple of parts, and its
    spread the difference of its largest and smallest. At first every sequence is a split of itself
    and empty parts; with `equal_size` every run of `num_partitions` sequences in order of length is
    one, so that all parts keep the same number. The two splits of largest spread are merged,
    largest part to smallest, until one is left. No part is empty if there are sequences enough.
    Throws UsageError if `equal_size` is asked of a number that does not divide, or if a length is
    negative.
    """
    _check_lengths(lengths)
    if num_partitions < 1:
        raise UsageError(f"num_partitions={num_partitions} makes no parts. Use 1 or more.")
    if equal_size and len(lengths) % num_partitions:
        raise UsageError(
            f"{len(lengths)} sequences do not divide into {num_partitions} parts of equal size. "
            "Change one of the two, or leave equal_size out."
        )
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    run = num_partitions if equal_size else 1
    heap: list[tuple[int, int, list[_Part]]] = []

    def push(split: list[_Part]) -> None:
        smallest = split[-1][0] if len(split) == num_partitions else 0
        heapq.heappush(heap, (smallest - split[0][0], next(serial), split))

    serial = itertools.count()  # of equal spreads the older first, on every rank
    for start in range(0, len(order), run):
        push([(lengths[i], [i]) for i in reversed(order[start : start + run])])
    while len(heap) > 1:
        push(_merged(heapq.heappop(heap)[2], heapq.heappop(heap)[2], num_partitions))
    parts = sorted(sorted(indices) for _, indices in heap[0][2]) if heap else []
    return parts + [[] for _ in range(num_partitions - len(parts))]


def _merged(one: list[_Part], other: list[_Part], num_partitions: int) -> list[_Part]:
    """The split of both. Splits list their parts from the largest down and leave empty ones out,
    so that a part of `other` meets one of `one` only when there are more than num_partitions."""
    alone = num_partitions - len(other)
    nothing: _Part = (0, [])
    pairs = itertools.zip_longest(one[alone:], reversed(other), fillvalue=nothing)
    parts = one[:alone] + [(a[0] + b[0], a[1] + b[1]) for a, b in pairs]
    return sorted(parts, key=lambda part: part[0], reverse=True)


def micro_batches(
    lengths: Sequence[int], max_tokens: int, *, min_batches: int = 1, padded: bool = False
) -> list[list[int]]:
    """Cuts the sequences into few micro-batches of at most `max_tokens` tokens each.

    Sequences are packed, without padding; with `padded` each is as long as the longest of its
    micro-batch, which then holds sequences of like length. All ranks must run the same number of
    micro-batches when each ends in a collective: call once, take the largest number over the ranks,
    and call again with it as `min_batches`; parts beyond the number of sequences are empty. Throws
    UsageError if one sequence alone is longer than `max_tokens`.
    """
    _check_lengths(lengths)
    if min_batches < 0:
        raise UsageError(f"min_batches={min_batches} is negative. Use 0 or more.")
    if not lengths:
        return [[] for _ in range(min_batches)]
    longest = max(range(len(lengths)), key=lambda i: lengths[i])
    if lengths[longest] > max_tokens:
        raise UsageError(
            f"sequence {longest} has {lengths[longest]} tokens: max_tokens={max_tokens}. "
            "Raise the budget, or shorten the sequences."
        )
    if padded:
        return _padded_batches(lengths, max_tokens, min_batches)
    alone = sum(2 * length > max_tokens for length in lengths)  # no two of these share a part
    number = max(min_batches, -(-sum(lengths) // max(max_tokens, 1)), alone, 1)
    return _fewest_parts(lengths, max_tokens, number)


def like_lengths(lengths: Sequence[int], call_pairs: int) -> list[list[int]]:
    """Cuts the sequences into *buckets* of like length, for the least work of attention.

    In a bucket every sequence is as long as the longest, so that b sequences of up to w tokens cost
    b w^2 pairs of tokens, and `call_pairs` more for a call of its own. Buckets are runs in the
    order of lengths; the best runs up to each length follow from the best ones before it.
    """
    sizes, counts = np.unique(np.array(lengths, np.int64), return_counts=True)
    before = np.concatenate([[0], counts.cumsum()])  # sequences shorter than each size
    least, first = np.zeros(len(sizes) + 1), [0] * (len(sizes) + 1)
    for end in range(1, len(sizes) + 1):
        costs = least[:end] + (before[end] - before[:end]) * float(sizes[end - 1]) ** 2
        first[end] = int(costs.argmin())
        least[end] = costs[first[end]] + call_pairs
    rank = np.searchsorted(sizes, lengths)
    buckets, end = [], len(sizes)
    while end:
        inside = (rank >= first[end]) & (rank < end)
        buckets.append(np.flatnonzero(inside).tolist())
        end = first[end]
    return buckets


def _padded_batches(lengths: Sequence[int], max_tokens: int, number: int) -> list[list[int]]:
    """Runs in the order of lengths, from the longest down, each as long as the budget allows; the
    runs of most sequences are halved until there are `number`."""
    parts: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not parts or (len(parts[-1]) + 1) * lengths[parts[-1][0]] > max_tokens:
            parts.append([])
        parts[-1].append(i)
    while len(parts) < min(number, len(lengths)):
        fullest = max(range(len(parts)), key=lambda k: len(parts[k]))
        half = len(parts[fullest]) // 2
        parts[fullest : fullest + 1] = [parts[fullest][:half], parts[fullest][half:]]
    empty: list[list[int]] = [[] for _ in range(number - len(parts))]
    return sorted(sorted(part) for part in parts) + empty


def _fewest_parts(lengths: Sequence[int], max_tokens: int, number: int) -> list[list[int]]:
    """The parts of the smallest number found, from `number` on, that keep to `max_tokens`.

    Steps double until the parts fit (one sequence a part always does); then the last is halved.
    """

    def parts_if_fit(number: int) -> list[list[int]] | None:
        parts = seqlen_balanced_partitions(lengths, number)
        fit = all(sum(lengths[i] for i in part) <= max_tokens for part in parts)
        return parts if fit else None

    too_few, step = number - 1, 1
    while (found := parts_if_fit(number)) is None:
        too_few, number, step = number, number + step, 2 * step
    while number - too_few > 1:
        middle = (number + too_few) // 2
        parts = parts_if_fit(middle)
        if parts is None:
            too_few = middle
        else:
            found, number = parts, middle
    return found


def _check_lengths(lengths: Sequence[int]) -> None:
    for index, length in enumerate(lengths):
        if length < 0:
            raise UsageError(
                f"sequence {index} has length {length}. Pass lengths of 0 or more tokens."
            )
