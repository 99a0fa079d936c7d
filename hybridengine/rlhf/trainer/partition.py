"""partition: which rank computes which rows, and in which optimizer step.

Pure functions of groups and lengths. A *group* is the rows that answer one prompt: advantages
compare them, so a group stays on one rank. A *mini-batch* is what one optimizer step takes: a set
of groups, the same whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridengine.rlhf.balance import seqlen_balanced_partitions


@dataclass(frozen=True)
class Partition:
    """`ranks`: the rows of each rank, ascending. `mini_batch`: the number of each row's mini-batch,
    by row; every number from 0 to num_mini_batches - 1 has rows, though not on every rank."""

    ranks: list[list[int]]
    mini_batch: list[int]
    num_mini_batches: int


def partition(
    groups: Sequence[int],
    lengths: Sequence[int],
    *,
    num_ranks: int,
    mini_batch_groups: int,
    seed: int,
) -> Partition:
    """Cuts rows into mini-batches of `mini_batch_groups` groups in an order drawn from `seed`, the
    last with what is left, and each mini-batch into parts of about equal length for the ranks.

    `groups` and `lengths` (tokens) are by row.
    """
    members = _members(groups)
    names = sorted(members)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(names)).tolist()
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    mini_batch = [0] * len(groups)
    count = 0
    for start in range(0, len(order), mini_batch_groups):
        chosen = [members[names[i]] for i in order[start : start + mini_batch_groups]]
        for rows in chosen:
            for row in rows:
                mini_batch[row] = count
        totals = [sum(lengths[row] for row in rows) for rows in chosen]
        parts = seqlen_balanced_partitions(totals, num_ranks)
        # The rank with the least so far takes the longest part.
        heaviest = sorted(parts, key=lambda part: -sum(totals[i] for i in part))
        lightest = sorted(range(num_ranks), key=lambda r: sum(lengths[row] for row in ranks[r]))
        for rank, part in zip(lightest, heaviest, strict=True):
            ranks[rank] += [row for i in part for row in chosen[i]]
        count += 1
    return Partition([sorted(rows) for rows in ranks], mini_batch, count)


def spread(lengths: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Rows for each rank, ascending, of about equal length and number: for passes in which rows do
    not depend on each other. Dealt out from the longest down, to and fro."""
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    period = 2 * num_ranks
    turns = [order[turn::period] for turn in range(period)]
    return [sorted(turns[rank] + turns[period - 1 - rank]) for rank in range(num_ranks)]


def spread_groups(groups: Sequence[int], lengths: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Like `spread`, but the rows of a group stay together: what generates runs their prompt once.

    Where there are fewer groups than ranks, each is divided into as many parts as give every rank
    some: a prompt that runs once more costs less than a rank that does nothing.
    """
    members = list(_members(groups).values())
    each = max(1, -(-num_ranks // max(1, len(members))))
    parts = [rows[part::each] for rows in members for part in range(min(each, len(rows)))]
    shares = spread([sum(lengths[row] for row in part) for part in parts], num_ranks)
    return [sorted(row for part in share for row in parts[part]) for share in shares]


def _members(groups: Sequence[int]) -> dict[int, list[int]]:
    """By group, its rows."""
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    return members
