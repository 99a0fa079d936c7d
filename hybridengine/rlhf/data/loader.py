"""loader: in which order samples are taken. Not what they are: it gives out indices."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

from hybridengine._core import UsageError


class PromptLoader:
    """Batches of indices below `num_samples`, for ever.

    The order of an epoch depends on (seed, epoch) alone, and is the same with every version of
    numpy. A batch that the epoch cannot fill goes on with the next one: no sample is left out.
    """

    def __init__(
        self, num_samples: int, batch_size: int, seed: int, shuffle: bool = True, digest: str = ""
    ) -> None:
        """`digest` of the samples, by which a state of others is known. Throws UsageError for sizes
        below 1 and a negative seed."""
        for name, value, least in (
            ("samples", num_samples, 1),
            ("samples of a batch", batch_size, 1),
            ("as seed", seed, 0),
        ):
            if value < least:
                raise UsageError(f"a loader of {value} {name}. Give {least} or more.")
        self._num_samples, self._batch_size = num_samples, batch_size
        self._seed, self._shuffle, self._digest = seed, shuffle, digest
        self._drawn = 0
        self._order: tuple[int, numpy.ndarray[Any, Any]] | None = None

    @property
    def epoch(self) -> int:
        """Passes that are complete."""
        return self._drawn // self._num_samples

    def next_batch(self) -> list[int]:
        """The next `batch_size` indices."""
        batch: list[int] = []
        while len(batch) < self._batch_size:
            start = self._drawn % self._num_samples
            wanted = self._batch_size - len(batch)
            part = self._epoch_order(self.epoch)[start : start + wanted]
            batch += part.tolist()
            self._drawn += len(part)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, in values that JSON can hold."""
        return {
            "num_samples": self._num_samples,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "digest": self._digest,
            "drawn": self._drawn,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on exactly where the loader of that state stood; the batch size may differ.

        Throws UsageError for a state of other data, seed or shuffling.
        """
        own = self.state_dict()
        if set(state) != set(own) or not isinstance(state["drawn"], int) or state["drawn"] < 0:
            raise UsageError(f"{state} is no state of a loader. Pass what state_dict() gave.")
        for name in ("num_samples", "seed", "shuffle"):
            if state[name] != own[name]:
                raise UsageError(
                    f"the data order cannot be resumed: {name} was {state[name]} and is "
                    f"{own[name]}. Resume with the same data and seed, or start a new run."
                )
        if state["digest"] != self._digest:
            raise UsageError(
                f"the data order cannot be resumed: there are {self._num_samples} samples as "
                "before, and they are not the same. Resume with the same data and tokenizer, or "
                "start a new run."
            )
        self._drawn = state["drawn"]

    def _epoch_order(self, epoch: int) -> numpy.ndarray[Any, Any]:
        if self._order is None or self._order[0] != epoch:
            order = numpy.arange(self._num_samples)
            if self._shuffle:
                # Raw bits of a bit generator never change between versions; permutation() may.
                bits = numpy.random.Philox(numpy.random.SeedSequence([self._seed, epoch]))
                order = numpy.argsort(bits.random_raw(self._num_samples), kind="stable")
            self._order = (epoch, order)
        return self._order[1]


def digest_of(rows: Iterable[Sequence[int]]) -> str:
    """Of the token ids of all samples, in their order."""
    found = hashlib.sha256()
    for ids in rows:
        found.update(numpy.array([len(ids), *ids], dtype="<i8").tobytes())
    return found.hexdigest()[:16]
