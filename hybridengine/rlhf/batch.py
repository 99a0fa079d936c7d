"""batch: rows of unequal length, with what is known of each token and of each row.

What workers hand to each other. Nothing is padded: a column of tokens is flat, all rows one after
the other, so that a batch is cut, joined and sent cheaply, and packs for a forward pass as it is.

Columns that the trainer knows. Of tokens, float unless said otherwise; index t of a row is about
the token at t, given those before it, and the first token of a row is never trainable:

    ids (int64), mask (bool: trainable), rollout_log_probs, weight_version (int64: of the weights
    that drew it, -1 for what no weights drew), old_log_probs, ref_log_probs, values, advantages,
    returns, weights (of the rollout correction), turn_rewards (float64: of an environment)

Of rows: sample_id, group, prompt_length, mini_batch (int64), truncated (bool), scores, task_scores,
baselines, last_values. Objects, one Python value a row: prompt, response (the last one),
ground_truth, data_source, extra, where, and where environments answer exchanges (pairs of response
and observation) and numbers (by name).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hybridengine._core import UsageError


@dataclass(frozen=True)
class Batch:
    """B rows of lengths n_b with N tokens in all. A value: methods return new batches, which may
    share memory with this one."""

    lengths: torch.Tensor  # int64 [B]
    tokens: Mapping[str, torch.Tensor] = field(default_factory=dict)  # each [N, ...]
    rows: Mapping[str, torch.Tensor] = field(default_factory=dict)  # each [B, ...]
    objects: Mapping[str, list[Any]] = field(default_factory=dict)  # each of length B

    def __post_init__(self) -> None:
        size, total = len(self.lengths), int(self.lengths.sum())
        for columns, expected, what in (
            (self.tokens, total, "tokens"),
            (self.rows, size, "rows"),
            (self.objects, size, "rows"),
        ):
            for name, column in columns.items():
                if len(column) != expected:
                    raise UsageError(
                        f"column {name!r} has {len(column)} entries for {expected} {what}. "
                        f"Pass one for each."
                    )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, name: str) -> Any:
        """The column `name`, of whichever kind. Throws UsageError that lists the columns."""
        for columns in (self.tokens, self.rows, self.objects):
            if name in columns:
                return columns[name]
        raise UsageError(f"the batch has no column {name!r}: it has {', '.join(self._names())}.")

    def __contains__(self, name: str) -> bool:
        return name in self._names()

    def with_tokens(self, **columns: torch.Tensor) -> Batch:
        return replace(self, tokens={**self.tokens, **columns})

    def with_rows(self, **columns: torch.Tensor) -> Batch:
        return replace(self, rows={**self.rows, **columns})

    def with_objects(self, **columns: list[Any]) -> Batch:
        return replace(self, objects={**self.objects, **columns})

    def merged(self, *others: Batch) -> Batch:
        """These rows with the columns of `others` too, which are about the same rows."""
        merged = self
        for other in others:
            if not torch.equal(other.lengths, self.lengths):
                raise UsageError(
                    f"batches of {len(self)} and {len(other)} rows are not about the same rows: "
                    "lengths differ. Pass columns of the same rows in the same order."
                )
            merged = merged.with_tokens(**other.tokens).with_rows(**other.rows)
            merged = merged.with_objects(**other.objects)
        return merged

    def keep(self, *names: str) -> Batch:
        """Only these columns; those that the batch lacks are no error."""
        return Batch(
            self.lengths,
            {name: column for name, column in self.tokens.items() if name in names},
            {name: column for name, column in self.rows.items() if name in names},
            {name: column for name, column in self.objects.items() if name in names},
        )

    def select(self, indices: Sequence[int] | torch.Tensor) -> Batch:
        """The rows at `indices`, in their order."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        lengths = self.lengths[index]
        flat = _ranges(self.first_tokens()[index], lengths)
        picked = index.tolist()
        return Batch(
            lengths,
            {name: column[flat] for name, column in self.tokens.items()},
            {name: column[index] for name, column in self.rows.items()},
            {name: [column[i] for i in picked] for name, column in self.objects.items()},
        )

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """All rows, in order. Batches without rows may lack columns; others must agree on them."""
        full = [batch for batch in batches if len(batch)] or list(batches[:1])
        if not full:
            raise UsageError("there is no batch to join. Pass one or more.")
        if any(batch._names() != full[0]._names() for batch in full):
            lists = " and ".join(sorted({", ".join(sorted(batch._names())) for batch in full}))
            raise UsageError(f"batches have different columns: {lists}. Give all the same.")
        return Batch(
            torch.cat([batch.lengths for batch in full]),
            {name: torch.cat([batch.tokens[name] for batch in full]) for name in full[0].tokens},
            {name: torch.cat([batch.rows[name] for batch in full]) for name in full[0].rows},
            {
                name: [value for batch in full for value in batch.objects[name]]
                for name in full[0].objects
            },
        )

    def padded(self, name: str, fill: float = 0) -> torch.Tensor:
        """The column `name` of tokens as [B, T, ...], T the longest row, padded on the right."""
        return self.pad(self.tokens[name], fill)

    def pad(self, flat: torch.Tensor, fill: float = 0) -> torch.Tensor:
        """[N, ...] as [B, T, ...], padded on the right with `fill`; carries gradients."""
        width = int(self.lengths.max()) if len(self) else 0
        out = flat.new_full((len(self) * width, *flat.shape[1:]), fill)
        out = out.index_copy(0, self.places(width).to(flat.device), flat)
        return out.view(len(self), width, *flat.shape[1:])

    def flat(self, padded: torch.Tensor) -> torch.Tensor:
        """What `pad` made a rectangle of: [B, T, ...] as [N, ...]; carries gradients."""
        return padded.flatten(0, 1)[self.places(padded.shape[1]).to(padded.device)]

    def places(self, width: int) -> torch.Tensor:
        """int64 [N]: where each token lies in a flattened [B, width]."""
        return _ranges(torch.arange(len(self)) * width, self.lengths)

    def first_tokens(self) -> torch.Tensor:
        """int64 [B]: the index among all tokens of the first one of each row."""
        return self.lengths.cumsum(0) - self.lengths

    def last_tokens(self) -> torch.Tensor:
        """int64 [B]: the index among all tokens of the last one of each row."""
        return self.first_tokens() + self.lengths - 1

    def row_sums(self, column: torch.Tensor) -> torch.Tensor:
        """[B]: the sum of a column of tokens over each row; of bools int64, else float64."""
        exact = torch.int64 if column.dtype == torch.bool else torch.float64
        sums = torch.zeros(len(self), dtype=exact)
        rows = torch.arange(len(self)).repeat_interleave(self.lengths)
        return sums.index_add(0, rows, column.to(exact))

    def _names(self) -> set[str]:
        return {*self.tokens, *self.rows, *self.objects}


def as_rows(prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> Batch:
    """Prompts and answers as rows whose answers are trainable."""
    pairs = list(zip(prompts, answers, strict=True))
    return masked_rows(
        [prompt + answer for prompt, answer in pairs],
        [[False] * len(prompt) + [True] * len(answer) for prompt, answer in pairs],
    ).with_rows(prompt_length=torch.tensor([len(p) for p in prompts], dtype=torch.int64))


def masked_rows(ids: Sequence[list[int]], masks: Sequence[list[bool]]) -> Batch:
    """Rows of ids, with which of them are trainable."""
    flat = itertools.chain.from_iterable
    return Batch(
        torch.tensor([len(row) for row in ids], dtype=torch.int64),
        {
            "ids": torch.tensor(list(flat(ids)), dtype=torch.int64),
            "mask": torch.tensor(list(flat(masks)), dtype=torch.bool),
        },
    )


def _ranges(starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """starts[0], starts[0] + 1, ... (lengths[0] of them), starts[1], ..."""
    before = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) + (starts - before).repeat_interleave(lengths)
