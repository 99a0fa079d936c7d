"""partition: which place computes which rows, and in which optimizer step.

Pure functions of groups and lengths. A *group* is the rows that answer one prompt. What generates
runs their prompt once where they are together; what trains takes rows from wherever they balance:
advantages compare groups by their sums over all places. A *mini-batch* is what one optimizer step
takes: a set of groups, the same whatever the number of places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridengine.rlhf.balance import seqlen_balanced_partitions


@dataclass(frozen=True)
class Partition:
    """`places`: the rows of each place, ascending. By row, the numbers of its mini-batch and of its
    group, both from 0 on; every mini-batch has rows, though not at every place if they are few."""

    places: list[list[int]]
    mini_batch: list[int]
    group: list[int]
    num_mini_batches: int
    num_groups: int


def partition(
    groups: Sequence[int],
    lengths: Sequence[int],
    *,
    num_places: int,
    mini_batch_groups: int,
    seed: int,
) -> Partition:
    """Cuts rows into mini-batches of `mini_batch_groups` groups in an order drawn from `seed`, the
    last with what is left, and the rows of each into parts of about equal length for the places.

    `groups` and `lengths` (tokens) are by row.
    """
    members = _members(groups)
    names = sorted(members)
    number = {name: place for place, name in enumerate(names)}
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(names)).tolist()
    places: list[list[int]] = [[] for _ in range(num_places)]
    mini_batch = [0] * len(groups)
    starts = range(0, len(order), mini_batch_groups)
    for count, start in enumerate(starts):
        chosen = order[start : start + mini_batch_groups]
        rows = sorted(row for place in chosen for row in members[names[place]])
        for row in rows:
            mini_batch[row] = count
        _deal(rows, lengths, places)
    return Partition(
        [sorted(rows) for rows in places],
        mini_batch,
        [number[group] for group in groups],
        len(starts),
        len(names),
    )


def _deal(rows: Sequence[int], lengths: Sequence[int], places: list[list[int]]) -> None:
    """Adds `rows` to those of the places, which have rows already: the place with the least of them
    takes the longest part."""
    parts = seqlen_balanced_partitions([lengths[row] for row in rows], len(places))
    totals = [sum(lengths[rows[i]] for i in part) for part in parts]
    heaviest = sorted(range(len(parts)), key=lambda part: -totals[part])
    lightest = sorted(places, key=lambda taken: sum(lengths[row] for row in taken))
    for taken, part in zip(lightest, heaviest, strict=True):
        taken += [rows[i] for i in parts[part]]


def spread(lengths: Sequence[int], num_places: int) -> list[list[int]]:
    """Rows for each place, ascending, of about equal length and number: for passes in which rows do
    not depend on each other. Dealt out from the longest down, to and fro."""
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    period = 2 * num_places
    turns = [order[turn::period] for turn in range(period)]
    return [sorted(turns[place] + turns[period - 1 - place]) for place in range(num_places)]


def spread_groups(
    groups: Sequence[int], lengths: Sequence[int], num_places: int
) -> list[list[int]]:
    """Like `spread`, but the rows of a group stay together: what generates runs their prompt once.

    Where there are fewer groups than places, each is divided into as many parts as give every place
    some: a prompt that runs once more costs less than a place that does nothing.
    """
    members = list(_members(groups).values())
    each = max(1, -(-num_places // max(1, len(members))))
    parts = [rows[part::each] for rows in members for part in range(min(each, len(rows)))]
    shares = spread([sum(lengths[row] for row in part) for part in parts], num_places)
    return [sorted(row for part in share for row in parts[part]) for share in shares]


def _members(groups: Sequence[int]) -> dict[int, list[int]]:
    """By group, its rows."""
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    return members
