"""decoder: forward passes of a transformers model over the slots of a cache.

It knows tokens and positions, not requests or sampling. Nothing is kept of the model's weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.generation import attention
from hybridengine.rlhf.generation.slots import Ints

if TYPE_CHECKING:
    from hybridengine.rlhf.generation.cache import SlotCache

# Tokens, padding included, of one forward pass over prompts: what bounds its activations.
_PROMPT_TOKENS = 8192


class Decoder:
    """`model` on `device`. Throws UsageError on a model that cannot run on slots or does not have
    the pad token."""

    def __init__(self, model: Any, pad_token_id: int, device: torch.device) -> None:
        self._model, self._pad, self._device = model, pad_token_id, device
        self._config = model.config
        if isinstance(pad_token_id, bool) or pad_token_id not in range(self.vocab):
            raise UsageError(
                f"pad_token_id is {pad_token_id!r}, but the model's vocabulary has {self.vocab}. "
                "Use any token of it, for example the one that ends a text."
            )
        self._kinds = attention.layer_kinds(self._config)
        self._own_attention = _uses_own_attention(model)
        self._cache: SlotCache | None = None
        self._held: dict[tuple[int, ...], int] = {}  # a slot that holds the keys of this text
        self._position_bytes: int | None = None
        self.prefill_tokens = 0  # of prompts that ran, padding left out

    @property
    def vocab(self) -> int:
        return int(self._config.vocab_size)

    def slots(
        self, wanted: int, capacity: int, cache_bytes: Callable[[], int] | None, running: int
    ) -> int:
        """Makes room for at most `wanted` sequences of `capacity` positions, for fewer where they
        would take more than `cache_bytes()`. Returns for how many. The first `running` slots keep
        what they hold; where there is no room for more than those nothing changes."""
        cache = self._cache
        if cache is not None and cache.slots >= wanted and cache.capacity >= capacity:
            return wanted
        slots = wanted
        if cache_bytes is not None:
            size = self._bytes(capacity)
            limit = cache_bytes() + (0 if self._cache is None else self._cache.num_bytes)
            slots = min(wanted, limit // size)
            if slots < 1:
                raise UsageError(
                    f"a sequence of {capacity} tokens needs {size} bytes of cache, but there are "
                    f"{limit}. Raise rollout.gpu_memory_utilization, or lower "
                    "rollout.max_model_len."
                )
        if slots > running:
            self._make_room(slots, capacity, running)
        return max(slots, running)

    def free(self) -> None:
        self.forget_prompts()
        self._cache = None

    def forget_prompts(self) -> None:
        """No prompt is taken from a slot any more: for weights that are not those it ran with."""
        self._held = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within it the model is in inference mode and attends as slots need it; then as before."""
        was_training, before = self._model.training, self._config._attn_implementation
        if was_training:
            self._model.eval()
        if self._own_attention:
            self._config._attn_implementation = attention.IMPLEMENTATION
        try:
            with torch.inference_mode():
                yield
        finally:
            self._config._attn_implementation = before
            self._model.train(was_training)

    def enter(self, rows: Ints, prompts: Sequence[Sequence[int]]) -> None:
        """Fills slot rows[i] with all of prompts[i] but its last token, which is decoded like those
        that follow. Equal prompts run once, and one that a slot still holds is copied from there,
        also from a slot that is filled anew: samples of a prompt that enter one after the other run
        it once, however few slots there are."""
        slots: dict[tuple[int, ...], list[int]] = {}
        for row, prompt in zip(rows.tolist(), prompts, strict=True):
            if len(prompt) > 1:
                slots.setdefault(tuple(prompt[:-1]), []).append(row)
        held = {text: self._held[text] for text in slots if text in self._held}
        self._copy(held, slots)
        new = [text for text in sorted(slots, key=len) if text not in held]
        for texts in _parts(new):
            self._enter(texts, [slots[text] for text in texts])
        self.prefill_tokens += sum(map(len, new))
        self._leave(rows)
        self._held |= {text: some[0] for text, some in slots.items()}

    def step(self, tokens: Ints, positions: Ints) -> torch.Tensor:
        """Logits [B, V] after one token for each of the first B slots."""
        length = int(positions.max()) + 1
        equal = bool((positions == length - 1).all())
        places = self._tensor(positions)
        masks: attention.Masks = {}
        for kind in set(self._kinds):
            window = attention.window_of(self._config, kind)
            hides = not equal or (window is not None and length > window)
            masks[kind] = (
                attention.token_mask(places, length, window, self._like) if hides else None
            )
        self._slot_cache.advance(places, length)
        out = self._forward(self._model, self._tensor(tokens)[:, None], places[:, None], masks)
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    def move(self, src: Ints, dst: Ints, length: int) -> None:
        """Puts the sequences of slots `src` into `dst`; they have `length` positions at most."""
        self._slot_cache.move(self._tensor(src), self._tensor(dst), length)
        self._leave(dst)

    def _copy(
        self, held: dict[tuple[int, ...], int], slots: dict[tuple[int, ...], list[int]]
    ) -> None:
        """Fills the slots of every text that is held already."""
        pairs = [(src, dst) for text, src in held.items() for dst in slots[text] if dst != src]
        if pairs:
            src, dst = (self._tensor(np.array(each, np.int64)) for each in zip(*pairs, strict=True))
            self._slot_cache.move(src, dst, max(map(len, held)))

    def _leave(self, rows: Ints) -> None:
        """Slots `rows` do not hold any more what they held."""
        gone = set(rows.tolist())
        self._held = {text: slot for text, slot in self._held.items() if slot not in gone}

    def _make_room(self, slots: int, capacity: int, running: int) -> None:
        from hybridengine.rlhf.generation.cache import SlotCache

        held = self._cache
        if held is not None and held.slots >= slots and held.capacity >= capacity:
            return
        if held is not None and running:  # what slots hold of prompts stays too
            held.grow(max(slots, held.slots), max(capacity, held.capacity))
        else:
            self.free()  # before the next one is made
            self._cache = SlotCache(len(self._kinds), slots, capacity)

    def _enter(self, texts: list[tuple[int, ...]], slots: list[list[int]]) -> None:
        width = max(map(len, texts))
        tokens = np.full((len(texts), width), self._pad, np.int64)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = text
        masks: attention.Masks = {}
        for kind in set(self._kinds):
            window = attention.window_of(self._config, kind)
            explicit = not self._own_attention
            masks[kind] = attention.prompt_mask(width, window, self._like, explicit)
        rows = np.array(list(itertools.chain.from_iterable(slots)), np.int64)
        sources = np.repeat(np.arange(len(texts)), [len(each) for each in slots])
        self._slot_cache.enter(self._tensor(rows), self._tensor(sources))
        positions = torch.arange(width, device=self._device)[None]
        self._forward(self._model.base_model, self._tensor(tokens), positions, masks)

    def _forward(
        self, module: Any, tokens: torch.Tensor, positions: torch.Tensor, masks: attention.Masks
    ) -> Any:
        # Models with layers of one kind take its mask; the others take one for each kind.
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        return module(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._slot_cache,
            use_cache=True,
        )

    @property
    def _slot_cache(self) -> SlotCache:
        assert self._cache is not None
        return self._cache

    @property
    def _like(self) -> torch.Tensor:
        """Of the type and on the device of activations."""
        return torch.empty(0, dtype=self._model.dtype, device=self._device)

    def _bytes(self, capacity: int) -> int:
        """Of one slot. What a position takes is seen in a pass over one token, the first time."""
        if self._position_bytes is None:
            from hybridengine.rlhf.generation.cache import SlotCache

            self._cache = SlotCache(len(self._kinds), 1, 1)
            with self.running():
                self._enter([(self._pad,)], [[0]])
            self._position_bytes = self._cache.num_bytes
            self._cache = None
        return self._position_bytes * capacity

    def _tensor(self, array: Ints) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def _uses_own_attention(model: Any) -> bool:
    """Whether the model's attention is torch's SDPA, in whose place `attend` is put; a model with
    eager attention keeps it."""
    found = model.config._attn_implementation
    if found not in ("sdpa", "eager", attention.IMPLEMENTATION):
        raise UsageError(
            f"the model was loaded with attention {found!r}, which takes no mask of slots. Load it "
            'with attn_implementation="sdpa".'
        )
    if found == "eager":
        return False
    from transformers import AttentionInterface

    AttentionInterface.register(attention.IMPLEMENTATION, attention.attend)
    return True


def _parts(texts: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """`texts`, from short to long, in parts of _PROMPT_TOKENS at most or of a single one."""
    part: list[tuple[int, ...]] = []
    for text in texts:
        if part and (len(part) + 1) * len(text) > _PROMPT_TOKENS:
            yield part
            part = []
        part.append(text)
    if part:
        yield part
