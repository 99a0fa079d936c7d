"""groups: the responses to one prompt, compared with each other; which groups teach anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.algorithms.masks import check_scores
from hybridengine.rlhf.algorithms.moments import AllReduce, reduced
from hybridengine.rlhf.registry import Registry

group_filter: Registry[torch.Tensor] = Registry("group filter")


@dataclass(frozen=True)
class Groups:
    """Scores within their groups. All tensors are float64 [B]; rows that do not count have 0.

    `centred` is the score less the mean of its group, and exactly 0 where all scores of the group
    are equal. `size` counts the rows of the group. `total` sums rows [B] over the group of each.
    """

    size: torch.Tensor
    centred: torch.Tensor
    total: Callable[[torch.Tensor], torch.Tensor]

    @staticmethod
    def of(
        scores: torch.Tensor,
        groups: torch.Tensor,
        counted: torch.Tensor | None = None,
        *,
        num_groups: int | None = None,
        all_reduce: AllReduce | None = None,
    ) -> Groups:
        """`scores` floating [B], `groups` integer [B], `counted` bool [B] (None: all rows).

        Groups lie whole in the call (num_groups=None), or are numbered from 0 below `num_groups`,
        and `all_reduce` sums what each rank has of them: a number a group, never a row. Collective
        then, on ranks without rows too.

        The mean is taken twice, the second time of what is left of the scores. Equal scores differ
        from the first mean, which rounding may have moved, by the same few units of the last place:
        their sum is exact, and so is the second mean.
        """
        _check(scores, groups, num_groups)
        counted = torch.ones_like(groups, dtype=torch.bool) if counted is None else counted
        scores = scores.detach().double()
        check_scores(scores, counted)
        whole = num_groups is None
        index = torch.searchsorted(groups.sort().values, groups) if whole else groups.long()
        count = len(groups) if num_groups is None else num_groups  # no more groups than rows

        def total(rows: torch.Tensor) -> torch.Tensor:
            sums = torch.zeros(count, dtype=torch.float64, device=rows.device)
            sums = sums.index_add(0, index, torch.where(counted, rows, 0))
            return (sums if whole else reduced(sums, all_reduce))[index]

        size = total(torch.ones_like(scores))
        centred = scores
        for _ in range(2):
            mean = total(centred) / size.clamp(min=1)
            centred = torch.where(counted, centred - mean, 0)
        return Groups(size, centred, total)

    def differ(self) -> torch.Tensor:
        """bool [B]: the scores of the row's group are not all equal. Collective like of()."""
        return self.total(self.centred.abs()) > 0

    def std(self) -> torch.Tensor:
        """float64 [B]: standard deviation of the group of each row, over n - 1; 0 for one row.
        Collective like of()."""
        return (self.total(self.centred.square()) / (self.size - 1).clamp(min=1)).sqrt()


def _check(scores: torch.Tensor, groups: torch.Tensor, num_groups: int | None) -> None:
    if scores.dim() != 1 or groups.shape != scores.shape or groups.is_floating_point():
        raise UsageError(
            f"groups is {groups.dtype} {list(groups.shape)} for scores of shape "
            f"{list(scores.shape)}. Pass one integer a row."
        )
    if (
        num_groups is not None
        and len(groups)
        and not 0 <= groups.min() <= groups.max() < num_groups
    ):
        raise UsageError(
            f"groups are numbered from {int(groups.min())} to {int(groups.max())}, and num_groups "
            f"is {num_groups}. Number those of all ranks from 0."
        )


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
    return Groups.of(scores, groups).differ()
