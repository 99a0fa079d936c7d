"""rows: rows of a batch that lies in pieces in the memory of workers.

The controller's view of a batch: for each row the reference and the place in it, never the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridengine.rlhf.workers import Pick, Reference


@dataclass(frozen=True)
class Rows:
    at: list[tuple[Reference, int]]

    @staticmethod
    def of(pieces: Sequence[Reference], rows: Sequence[Sequence[int]]) -> Rows:
        """`pieces[r]` holds the rows numbered `rows[r]`, in that order; together they number every
        row from 0 once."""
        at: dict[int, tuple[Reference, int]] = {}
        for piece, numbers in zip(pieces, rows, strict=True):
            for index, number in enumerate(numbers):
                at[number] = (piece, index)
        return Rows([at[number] for number in range(len(at))])

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        return Rows([each for part in parts for each in part.at])

    def __len__(self) -> int:
        return len(self.at)

    def select(self, indices: Sequence[int]) -> Rows:
        return Rows([self.at[index] for index in indices])

    def picks(self, indices: Sequence[int]) -> list[Pick]:
        """What a worker resolves into one Batch of the rows at `indices`, in their order. For no
        indices it is no rows of the first piece: a batch without rows that has the columns."""
        if not indices:
            return [Pick(self.at[0][0], [])]
        runs: list[tuple[Reference, list[int]]] = []
        for reference, index in (self.at[i] for i in indices):
            if not runs or runs[-1][0] is not reference:
                runs.append((reference, []))
            runs[-1][1].append(index)
        return [Pick(reference, rows) for reference, rows in runs]
