"""cache: keys and values of the sequences that run, one slot each, as transformers asks for them.

A slot is a row of every layer's tensors; position p of a sequence lies at p. Nothing here knows how
long a sequence is: what was not written is hidden by masks. Imported where an engine runs, since it
needs transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache


class SlotCache(Cache):
    """`slots` sequences of up to `capacity` positions. A layer's tensors are made when it is first
    written, [slots, capacity, kv heads, head size] in the type of what is written."""

    def __init__(self, layers: int, slots: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.slots, self.capacity = slots, capacity
        self._keys: list[torch.Tensor | None] = [None] * layers
        self._values: list[torch.Tensor | None] = [None] * layers
        self._rows: torch.Tensor | None = None
        self._places = torch.empty(0, dtype=torch.int64)
        self._batch = self._length = 0

    @property
    def num_bytes(self) -> int:
        return sum(each.nbytes for each in (*self._keys, *self._values) if each is not None)

    def grow(self, slots: int, capacity: int) -> None:
        """Makes room for more, layer by layer; what is held stays."""
        for layers in (self._keys, self._values):
            for number, held in enumerate(layers):
                if held is not None:
                    more = held.new_zeros(slots, capacity, *held.shape[2:])
                    more[: self.slots, : self.capacity] = held
                    layers[number] = more
        self.slots, self.capacity = slots, capacity

    def enter(self, rows: torch.Tensor, sources: torch.Tensor) -> None:
        """The next forward pass runs whole prompts: its sequence sources[i] goes to slot rows[i]
        (both int64, on the model's device). Its layers see what they computed themselves."""
        self._rows, self._sources = rows, sources

    def advance(self, positions: torch.Tensor, length: int) -> None:
        """The next forward pass runs one token for each of the first B slots, at `positions`
        (int64 [B]), all below `length`."""
        batch = len(positions)
        self._rows = None
        self._places = torch.arange(batch, device=positions.device) * self.capacity + positions
        self._batch, self._length = batch, length

    def move(self, src: torch.Tensor, dst: torch.Tensor, length: int) -> None:
        """Copies the first `length` positions of slots `src` over those of `dst` (int64; one may be
        in both: what it held before is copied)."""
        for tensor in (*self._keys, *self._values):
            if tensor is not None:
                tensor[dst, :length] = tensor[src, :length]

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by each layer with what it computed, [B, kv heads, T, head size]; returns what it
        attends to."""
        held = (
            _made(self._keys, layer_idx, key_states, self.slots, self.capacity),
            _made(self._values, layer_idx, value_states, self.slots, self.capacity),
        )
        if self._rows is not None:
            width = key_states.shape[2]
            for tensor, new in zip(held, (key_states, value_states), strict=True):
                tensor[self._rows, :width] = new.transpose(1, 2)[self._sources]
            return key_states, value_states
        for tensor, new in zip(held, (key_states, value_states), strict=True):
            tensor.view(-1, *tensor.shape[2:]).index_copy_(0, self._places, new[:, :, 0])
        batch, length = self._batch, self._length
        return held[0][:batch, :length].transpose(1, 2), held[1][:batch, :length].transpose(1, 2)


def _made(
    layers: list[torch.Tensor | None], layer: int, new: torch.Tensor, slots: int, capacity: int
) -> torch.Tensor:
    found = layers[layer]
    if found is None:
        # Zeros: hidden positions are read too, and 0 times garbage may be NaN.
        found = new.new_zeros(slots, capacity, new.shape[1], new.shape[3])
        layers[layer] = found
    return found
