"""ways: how the tokens of running sequences are chosen, and which of them end one.

A *way* is what requests of equal sampling parameters have in common, apart from their seeds and
limits: nearly always there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.generation.params import SamplingParams
from hybridengine.rlhf.generation.sampling import choose
from hybridengine.rlhf.generation.slots import Ints, Slots, Ticket
from hybridengine.rlhf.generation.stopping import StopTexts


@dataclass(frozen=True)
class _Way:
    params: SamplingParams
    ends: npt.NDArray[np.bool_]  # [V]: the tokens that end a response
    texts: StopTexts | None

    def without_ends(self, logits: torch.Tensor, counts: Ints) -> torch.Tensor:
        """`logits` [B, V] with -inf at the tokens that end a response, where its `counts` [B]
        tokens are too few."""
        short = counts < self.params.min_tokens
        if not short.any():
            return logits
        banned = torch.from_numpy(short[:, None] & self.ends)
        return logits.masked_fill(banned.to(logits.device), -torch.inf)


class Ways:
    """Those of the requests that an engine has. `eos_token_ids` end a response unless it ignores
    them; `tokenizer` is needed for stop texts."""

    def __init__(self, eos_token_ids: Sequence[int], vocab: int, tokenizer: Any) -> None:
        self._eos, self._vocab, self._tokenizer = tuple(eos_token_ids), vocab, tokenizer
        self._ways: list[_Way] = []
        self._numbers: dict[SamplingParams, int] = {}

    def number(self, params: SamplingParams) -> int:
        """That of the way of `params`. Throws UsageError on tokens that the vocabulary lacks, and
        on stop texts without a tokenizer."""
        alike = replace(params, seed=0, max_tokens=max(params.min_tokens, 1))
        if alike not in self._numbers:
            texts = StopTexts(self._tokenizer, alike.stop) if alike.stop else None
            self._ways.append(_Way(alike, self._ends(alike), texts))
            self._numbers[alike] = len(self._ways) - 1
        return self._numbers[alike]

    def clear(self) -> None:
        """No request is left."""
        self._ways.clear()
        self._numbers.clear()

    def choose(
        self, slots: Slots, logits: torch.Tensor, uniforms: torch.Tensor
    ) -> tuple[Ints, npt.NDArray[Any]]:
        """The next tokens [B] of all sequences and their log-probs [B], from logits [B, V]."""
        size = slots.size
        tokens, log_probs = np.empty(size, np.int64), np.empty(size, np.float64)
        for way, rows in self._parts(slots):
            some: Any = slice(None) if len(rows) == size else torch.from_numpy(rows)
            allowed = way.without_ends(logits[some], slots.counts()[rows])
            chosen, scored = choose(allowed, way.params, uniforms[some])
            tokens[rows], log_probs[rows] = chosen.cpu().numpy(), scored.cpu().numpy()
        return tokens, log_probs

    def stopped(self, slots: Slots, tokens: Ints) -> Ints:
        """The slots that their newest token ends."""
        found = np.zeros(len(tokens), bool)
        for way, rows in self._parts(slots):
            found[rows] = way.ends[tokens[rows]]
            if way.texts is not None:
                late = slots.counts()[rows] > way.params.min_tokens
                for row, counts in zip(rows.tolist(), late.tolist(), strict=True):
                    number = slots.tickets[row].number
                    found[row] |= way.texts.completes(number, int(tokens[row])) and counts
        return np.flatnonzero(found)

    def forget(self, tickets: Iterable[Ticket]) -> None:
        """They have ended."""
        for ticket in tickets:
            texts = self._ways[ticket.way].texts
            if texts is not None:
                texts.forget(ticket.number)

    def _parts(self, slots: Slots) -> Iterator[tuple[_Way, Ints]]:
        ways = slots.ways[: slots.size]
        for number in np.unique(ways).tolist():
            yield self._ways[number], np.flatnonzero(ways == number)

    def _ends(self, params: SamplingParams) -> npt.NDArray[np.bool_]:
        table = np.zeros(self._vocab, bool)
        for token in (*(() if params.ignore_eos else self._eos), *params.stop_token_ids):
            if not 0 <= token < self._vocab:
                raise UsageError(
                    f"token {token} is to end responses, but the model's vocabulary has "
                    f"{self._vocab}. Use the tokenizer and the generation_config.json that belong "
                    "to the model, and mend stop_token_ids."
                )
            table[token] = True
        return table
