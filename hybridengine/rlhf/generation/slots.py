"""slots: the sequences that run, as arrays by slot: what was asked for and what was generated.

Slots 0 to size - 1 hold sequences; one that ends leaves a hole, which the next to enter takes, or
the last slot moves into. Knows no model: the cache of keys and values moves along with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridengine._core import UsageError
from hybridengine.rlhf.generation.params import FinishReason, Generation, Request
from hybridengine.rlhf.generation.uniforms import Streams

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ticket:
    """A request that was taken: the number that stands for it, the most tokens of its response,
    and which of the engine's ways to sample and stop is its."""

    number: int
    request: Request
    limit: int
    way: int

    @property
    def capacity(self) -> int:
        """Positions of the whole sequence; its last token is never run."""
        return len(self.request.prompt) - 1 + self.limit


class Slots:
    """Up to `most` sequences. `which` below are slots, int64 [B]."""

    def __init__(self, most: int) -> None:
        self.size = 0
        self.streams = Streams(most)
        self.tickets: list[Ticket] = []
        self.ways = np.zeros(most, np.int64)
        self._lasts = np.zeros(most, np.int64)  # position of the prompt's last token
        self._drawn = np.zeros(most, np.int64)
        self._limits = np.zeros(most, np.int64)
        self._counts = np.zeros(most, np.int64)
        self._next = np.zeros(most, np.int64)
        self._stopped = np.zeros(most, bool)
        self._ids = np.empty((most, 0), np.int64)
        self._log_probs = np.empty((most, 0), np.float64)
        self._versions = np.empty((most, 0), np.int64)

    def enter(self, which: Ints, tickets: Sequence[Ticket]) -> None:
        """Puts a ticket into each of `which`: holes, or the slots behind the last."""
        self._widen(max(ticket.limit for ticket in tickets))
        self.size = max(self.size, int(which.max()) + 1)
        self.tickets += [tickets[0]] * (self.size - len(self.tickets))
        for slot, ticket in zip(which.tolist(), tickets, strict=True):
            self.tickets[slot] = ticket
        requests = [ticket.request for ticket in tickets]
        self.ways[which] = [ticket.way for ticket in tickets]
        self._limits[which] = [ticket.limit for ticket in tickets]
        self._lasts[which] = [len(request.prompt) - 1 for request in requests]
        self._next[which] = [request.prompt[-1] for request in requests]
        self._drawn[which] = [request.drawn for request in requests]
        self._counts[which], self._stopped[which] = 0, False
        self.streams.join(
            which,
            np.array([request.params.seed for request in requests], np.uint64),
            np.array([request.sample_id for request in requests], np.int64),
            self._drawn[which],
        )

    def move(self, src: Ints, dst: Ints) -> None:
        """Puts the sequences of slots `src` into `dst`."""
        for slot, hole in zip(src.tolist(), dst.tolist(), strict=True):
            self.tickets[hole] = self.tickets[slot]
        self.streams.move(src, dst)
        for array in (self.ways, *self._columns(), *self._tokens()):
            array[dst] = array[src]

    def shrink(self, size: int) -> None:
        """Only the first `size` slots still hold sequences."""
        self.size = size
        del self.tickets[size:]

    def inputs(self) -> tuple[Ints, Ints]:
        """The token that each sequence runs next, and its position."""
        size = self.size
        return self._next[:size], self._lasts[:size] + self._counts[:size]

    def draw(self) -> npt.NDArray[np.float64]:
        """float64 [size] in [0, 1): what picks the next token of each."""
        return self.streams.draw(self._drawn[: self.size] + self._counts[: self.size])

    def take(self, tokens: Ints, log_probs: npt.NDArray[Any], version: int) -> None:
        """The next token of each. Throws UsageError where a log-prob is no number."""
        wrong = np.flatnonzero(~np.isfinite(log_probs))
        if len(wrong):
            self._refuse(int(wrong[0]))
        rows, counts = np.arange(self.size), self._counts[: self.size]
        for array, values in zip(self._tokens(), (tokens, log_probs, version), strict=True):
            array[rows, counts] = values
        self._next[: self.size] = tokens
        self._counts[: self.size] = counts + 1

    def stop(self, which: Ints) -> None:
        """Their last token ends them."""
        self._stopped[which] = True

    def counts(self) -> Ints:
        """int64 [size]: the tokens that each has generated."""
        return self._counts[: self.size]

    def ended(self) -> Ints:
        """Those that stopped or are at their limit."""
        size = self.size
        return np.flatnonzero(self._stopped[:size] | (self._counts[:size] >= self._limits[:size]))

    def generation(self, slot: int, *, aborted: bool = False) -> Generation:
        """What `slot` has so far."""
        reason: FinishReason = "stop" if self._stopped[slot] else "length"
        count = self._counts[slot]
        ids, log_probs, versions = (array[slot, :count].tolist() for array in self._tokens())
        return Generation(ids, log_probs, versions, "abort" if aborted else reason)

    def _columns(self) -> tuple[npt.NDArray[Any], ...]:
        return (
            self._lasts,
            self._drawn,
            self._limits,
            self._counts,
            self._next,
            self._stopped,
        )

    def _tokens(self) -> tuple[npt.NDArray[Any], ...]:
        """Arrays of what was generated, [slots, width]."""
        return self._ids, self._log_probs, self._versions

    def _widen(self, width: int) -> None:
        """Makes room for responses of `width` tokens."""
        more = width - self._ids.shape[1]
        if more > 0:
            self._ids, self._log_probs, self._versions = (
                np.pad(array, ((0, 0), (0, more))) for array in self._tokens()
            )

    def _refuse(self, slot: int) -> None:
        raise UsageError(
            f"sample {self.tickets[slot].request.sample_id} has logits that are no numbers at "
            f"token {self._counts[slot]} of its response: NaN or infinite. Look for NaN in the "
            "weights that were loaded."
        )
