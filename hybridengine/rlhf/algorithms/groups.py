"""groups: the responses to one prompt, compared with each other; which groups teach anything."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.algorithms.masks import check_scores
from hybridengine.rlhf.registry import Registry

group_filter: Registry[torch.Tensor] = Registry("group filter")


@dataclass(frozen=True)
class Groups:
    """Scores within their groups. All tensors are float64 [B]; rows that do not count have 0.

    `centred` is the score less the mean of its group, and exactly 0 where all scores of the group
    are equal: the mean of equal numbers need not be that number. `size` counts the rows of the
    group.
    """

    index: torch.Tensor  # int64 [B] below B, equal within a group
    size: torch.Tensor
    centred: torch.Tensor
    differ: torch.Tensor  # bool [B], the scores of the group are not all equal

    @staticmethod
    def of(
        scores: torch.Tensor, groups: torch.Tensor, counted: torch.Tensor | None = None
    ) -> Groups:
        """`scores` floating [B], `groups` integer [B], `counted` bool [B] (None: all rows)."""
        if scores.dim() != 1 or groups.shape != scores.shape or groups.is_floating_point():
            raise UsageError(
                f"groups is {groups.dtype} {list(groups.shape)} for scores of shape "
                f"{list(scores.shape)}. Pass one integer a row."
            )
        counted = torch.ones_like(groups, dtype=torch.bool) if counted is None else counted
        scores = scores.detach().double()
        check_scores(scores, counted)
        index = torch.searchsorted(groups.sort().values, groups)  # its first row in order
        zeros = torch.zeros_like(scores)  # there are no more groups than rows

        def total(rows: torch.Tensor) -> torch.Tensor:
            return zeros.index_add(0, index, torch.where(counted, rows, 0))[index]

        def extreme(rows: torch.Tensor, how: str) -> torch.Tensor:
            return rows.scatter_reduce(0, index, rows, how, include_self=False)[index]

        lowest = extreme(torch.where(counted, scores, torch.inf), "amin")
        highest = extreme(torch.where(counted, scores, -torch.inf), "amax")
        differ = lowest < highest
        size = total(torch.ones_like(scores))
        mean = total(scores) / size.clamp(min=1)
        centred = torch.where(counted & differ, scores - mean, 0)
        return Groups(index, size, centred, differ)

    def std(self) -> torch.Tensor:
        """float64 [B]: standard deviation of the group of each row, over n - 1; 0 for one row."""
        squares = torch.zeros_like(self.centred).index_add(0, self.index, self.centred.square())
        return (squares[self.index] / (self.size - 1).clamp(min=1)).sqrt()


@group_filter("none")
def keep_all(scores: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """bool [B], true everywhere."""
    return torch.ones_like(groups, dtype=torch.bool)


@group_filter("dapo")
def keep_informative(scores: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """bool [B], true where the scores of the row's group are not all equal.

    Groups with equal scores, a group of one among them, have advantage 0 and teach nothing.
    `scores` floating [B]: the scores of the task, before any shaping. `groups` integer [B].
    """
    return Groups.of(scores, groups).differ
