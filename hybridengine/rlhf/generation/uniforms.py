"""uniforms: the random number that picks a token, from (seed, sample, token) alone.

Philox4x32-10, a counter-based generator (Salmon et al. 2011): ten rounds of multiplications mix a
counter under a key. The seed is the key, sample and token are the counter, so that a number depends
on nothing that was drawn before it or beside it. There is no state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]  # each below 2**32

_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def uniforms(
    seeds: npt.NDArray[Any], samples: npt.NDArray[Any], first: npt.NDArray[Any], count: int
) -> npt.NDArray[np.float64]:
    """float64 [B, count] in [0, 1): for row b the numbers of tokens first[b], first[b] + 1, ...

    `seeds`, `samples` and `first` are int64 [B]; seeds and samples count modulo 2**64. The numbers
    are multiples of 2**-52: any of them times a sum is less than the sum after rounding too.
    """
    tokens: Words = (first[:, None] + np.arange(count)).astype(np.uint64)
    sample: Words = np.broadcast_to(samples[:, None].astype(np.uint64), tokens.shape)
    zero: Words = np.zeros_like(tokens)
    words: tuple[Words, Words, Words, Words] = (sample & _LOW, sample >> _HALF, tokens, zero)
    seed: Words = seeds[:, None].astype(np.uint64)
    high, low, _, _ = philox(words, (seed & _LOW, seed >> _HALF))
    bits = (high << _HALF | low) >> np.uint64(12)
    return bits.astype(np.float64) * 2.0**-52


def philox(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Four words of 32 bits for each counter, under its key or one for all; words are held as
    uint64."""
    a, b, c, d = counter
    left, right = key
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = second >> _HALF ^ b ^ left, second & _LOW
        c, d = first >> _HALF ^ d ^ right, first & _LOW
        left, right = left + _WEYL[0] & _LOW, right + _WEYL[1] & _LOW
    return a, b, c, d


class Streams:
    """The numbers of the sequences in slots 0, 1, ..., handed out a step at a time.

    They are made for several steps at once, since a step needs few. A slot may begin at any step.
    """

    _CHUNK = 16  # steps: long enough to hide the cost, short enough to waste little at the end

    def __init__(self, slots: int) -> None:
        self._seeds = np.zeros(slots, np.uint64)
        self._samples = np.zeros(slots, np.int64)
        self._table = np.empty((slots, self._CHUNK))
        self._column = 0

    def join(
        self,
        slots: npt.NDArray[np.int64],
        seeds: npt.NDArray[np.uint64],
        samples: npt.NDArray[np.int64],
        first: npt.NDArray[np.int64],
    ) -> None:
        """From the next step on `slots` draw for tokens first, first + 1, ... of their samples."""
        self._seeds[slots], self._samples[slots] = seeds, samples
        self._make(slots, first)

    def move(self, src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64]) -> None:
        for array in (self._seeds, self._samples, self._table):
            array[dst] = array[src]

    def draw(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """float64 [B]: for token tokens[b] of slot b, which must follow the one before."""
        if self._column == self._CHUNK:
            self._column = 0
            self._make(np.arange(len(tokens)), tokens)
        self._column += 1
        drawn: npt.NDArray[np.float64] = self._table[: len(tokens), self._column - 1]
        return drawn

    def _make(self, slots: npt.NDArray[np.int64], first: npt.NDArray[np.int64]) -> None:
        left = self._CHUNK - self._column
        if left:
            made = uniforms(self._seeds[slots], self._samples[slots], first, left)
            self._table[slots, self._column :] = made
