"""balance: a batch of sequences cut into parts of about equal work.

Pure functions of the lengths alone: ranks that know all lengths find the same parts without
talking. A part is a list of indices into the lengths, ascending. Nothing here touches a tensor.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

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
    for serial, start in enumerate(range(0, len(order), run)):
        split = [(lengths[i], [i]) for i in reversed(order[start : start + run])]
        split += [(0, [])] * (num_partitions - run)
        heap.append((split[-1][0] - split[0][0], serial, split))
    heapq.heapify(heap)
    serial = len(heap)
    while len(heap) > 1:
        split = _merged(heapq.heappop(heap)[2], heapq.heappop(heap)[2])
        heapq.heappush(heap, (split[-1][0] - split[0][0], serial, split))
        serial += 1
    parts = heap[0][2] if heap else [(0, [])] * num_partitions
    return sorted((sorted(indices) for _, indices in parts), key=lambda part: (not part, part))


def _merged(one: list[_Part], other: list[_Part]) -> list[_Part]:
    """Both are ordered from the largest part to the smallest, and so is the result."""
    parts = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(one, reversed(other), strict=True)]
    # Of two parts of no length one may hold sequences: it comes first, to leave no part empty.
    return sorted(parts, key=lambda part: (part[0], len(part[1])), reverse=True)


def micro_batches(
    lengths: Sequence[int], max_tokens: int, *, min_batches: int = 1
) -> list[list[int]]:
    """Cuts the sequences into few micro-batches of at most `max_tokens` tokens each.

    `lengths` are those of packed sequences, without padding. All ranks must run the same number of
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
    number = max(min_batches, -(-sum(lengths) // max(max_tokens, 1)), 1)
    while True:  # ends: with one sequence a part everything fits
        parts = seqlen_balanced_partitions(lengths, number)
        if all(sum(lengths[i] for i in part) <= max_tokens for part in parts):
            return parts
        number += 1


def _check_lengths(lengths: Sequence[int]) -> None:
    for index, length in enumerate(lengths):
        if length < 0:
            raise UsageError(
                f"sequence {index} has length {length}. Pass lengths of 0 or more tokens."
            )
