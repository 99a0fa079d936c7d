"""engine: the built-in rollout engine, batched sampling over a transformers model.

Sequences run in slots, each with a length of its own; the slot of one that ends goes to the next
request at once, and where none waits the batch shrinks. What a sample becomes does not depend on
the others: see `uniforms`. It is no server: it goes on while somebody polls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.generation.decoder import Decoder
from hybridengine.rlhf.generation.params import Generation, Request
from hybridengine.rlhf.generation.slots import Ints, Slots, Ticket
from hybridengine.rlhf.generation.ways import Ways
from hybridengine.rlhf.generation.weights import load_weights, release_weights


class Engine:
    """Generates with `model`, a causal language model of transformers with SDPA or eager attention.
    It is a `RolloutEngine`.

    `max_model_len`: the most tokens of prompt and response. `max_num_seqs`: the most sequences that
    run at a time, fewer where their keys and values would take more than `cache_bytes()`, which is
    asked for when room is made.
    `eos_token_ids` end a response; `pad_token_id` fills prompts up and may be any token.
    `tokenizer` is needed for stop texts only. `device`: that of the weights, by default the
    model's.

    Weights may be written in place between polls, or parameters pointed at other memory: nothing is
    kept of them but what running sequences attend to. The model is as it was when poll() returns.
    """

    def __init__(
        self,
        model: Any,
        *,
        eos_token_ids: Sequence[int],
        pad_token_id: int,
        tokenizer: Any = None,
        max_model_len: int,
        max_num_seqs: int,
        device: torch.device | str | None = None,
        cache_bytes: Callable[[], int] | None = None,
    ) -> None:
        _check_sizes(max_model_len, max_num_seqs)
        self.model = model
        self._device = torch.device(model.device if device is None else device)
        self._decoder = Decoder(model, pad_token_id, self._device)
        self._ways = Ways(eos_token_ids, self._decoder.vocab, tokenizer)
        self._max_model_len, self._max_num_seqs = max_model_len, max_num_seqs
        self._cache_bytes = cache_bytes
        self.version = 0
        self._submitted = 0
        self._slots = Slots(max_num_seqs)
        self._waiting = deque[Ticket]()
        self._capacity = self._made = 1  # positions of the longest, and what there is room for

    def submit(self, request: Request) -> int:
        """Takes a request; returns the number that poll() will name it by. Equal (seed, sample id,
        prompt, weights) give equal tokens, up to rounding, whatever else runs. A response is cut
        where prompt and response reach max_model_len.

        Throws UsageError that names the sample on a prompt that is empty, leaves no room or has a
        token beyond the vocabulary.
        """
        _check_prompt(request, self._max_model_len, self._decoder.vocab)
        ticket = Ticket(
            self._submitted,
            request,
            min(request.params.max_tokens, self._max_model_len - len(request.prompt)),
            self._ways.number(request.params),
        )
        self._submitted += 1
        self._waiting.append(ticket)
        self._capacity = max(self._capacity, ticket.capacity)
        return ticket.number

    def poll(self, steps: int = 16) -> list[tuple[int, Generation]]:
        """Runs until a response ends, at most `steps` tokens of each sequence. Returns the requests
        that ended, by number, with what they became. Throws UsageError that names the sample on
        logits that are NaN; everything that was submitted is dropped then."""
        try:
            with self._decoder.running():
                self._admit()
                for _ in range(steps if self._slots.size else 0):
                    self._step()
                    ended = self._slots.ended()
                    if len(ended):
                        return self._leave(ended)
        except BaseException:
            self._clear()
            self._decoder.free()  # it may hold NaN, which would spread from hidden positions
            raise
        return []

    def abort(self, numbers: Collection[int] | None = None) -> list[tuple[int, Generation]]:
        """Ends requests, by default all; what they have so far."""
        kept = deque[Ticket]()
        found = []
        for ticket in self._waiting:
            if numbers is None or ticket.number in numbers:
                found.append((ticket.number, Generation([], [], [], "abort")))
            else:
                kept.append(ticket)
        self._waiting = kept
        running = enumerate(self._slots.tickets)
        chosen = [slot for slot, each in running if numbers is None or each.number in numbers]
        return found + self._leave(np.array(chosen, np.int64), aborted=True)

    @property
    def unfinished(self) -> int:
        """Requests that run or wait."""
        return self._slots.size + len(self._waiting)

    def load_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """See weights.load_weights(). Tokens from now on are of `version`; sequences that run keep
        their keys and values, which are of the weights before."""
        self._decoder.forget_prompts()
        load_weights(self.model, tensors)
        self.version = version

    def sleep(self) -> None:
        """Drops keys and values and lets go of the weights' memory, until load_weights(). Throws
        UsageError while sequences run."""
        self.free()
        release_weights(self.model)

    def free(self) -> None:
        """Drops keys and values; the next poll makes room anew. Throws UsageError while sequences
        run."""
        if self._slots.size:
            raise UsageError(
                f"{self._slots.size} sequences run and need their keys and values. Poll until they "
                "have ended, or abort them."
            )
        self._decoder.free()

    def _clear(self) -> None:
        """Drops all requests."""
        self._waiting.clear()
        self._slots.shrink(0)
        self._capacity = self._made = 1
        self._ways.clear()
        self._decoder.forget_prompts()  # weights may be written before the next request

    def _admit(self) -> None:
        """Puts requests that wait into slots, as many as there is room for."""
        running = self._slots.size
        wanted = min(running + len(self._waiting), self._max_num_seqs)
        if wanted == running:
            return
        room = self._decoder.slots(wanted, self._capacity, self._cache_bytes, running)
        if room > running:
            self._made = self._capacity
            self._enter(np.arange(running, room))

    def _enter(self, which: Ints) -> None:
        """Puts as many of those that wait into the slots `which`."""
        if len(which):
            tickets = [self._waiting.popleft() for _ in which]
            self._slots.enter(which, tickets)
            self._decoder.enter(which, [ticket.request.prompt for ticket in tickets])

    def _step(self) -> None:
        """One token for each sequence."""
        slots = self._slots
        logits = self._decoder.step(*slots.inputs())
        drawn = torch.from_numpy(slots.draw()).to(logits.device)
        tokens, log_probs = self._ways.choose(slots, logits, drawn)
        slots.take(tokens, log_probs, self.version)
        slots.stop(self._ways.stopped(slots, tokens))

    def _leave(self, ended: Ints, *, aborted: bool = False) -> list[tuple[int, Generation]]:
        """Takes the sequences in slots `ended` out."""
        slots = self._slots
        found = [
            (slots.tickets[slot].number, slots.generation(slot, aborted=aborted))
            for slot in ended.tolist()
        ]
        self._ways.forget(slots.tickets[slot] for slot in ended.tolist())
        self._fill(ended)
        if not self.unfinished:
            self._clear()
        return found

    def _fill(self, holes: Ints) -> None:
        """Gives the slots `holes` to requests that wait and fit, and where there are fewer moves
        sequences from the end into the others."""
        entering = min(len(holes), len(self._waiting)) if self._capacity <= self._made else 0
        with self._decoder.running():
            self._enter(holes[:entering])
            self._shrink(holes[entering:])

    def _shrink(self, holes: Ints) -> None:
        slots = self._slots
        size = slots.size - len(holes)
        dst = holes[holes < size]
        src = np.setdiff1d(np.arange(size, slots.size), holes)
        if len(src):
            _, positions = slots.inputs()
            self._decoder.move(src, dst, int(positions[src].max()))
            slots.move(src, dst)
        slots.shrink(size)


def _check_sizes(max_model_len: int, max_num_seqs: int) -> None:
    if max_model_len < 2:
        raise UsageError(
            f"max_model_len is {max_model_len}. Use 2 or more: a token of a prompt and one of its "
            "response."
        )
    if max_num_seqs < 1:
        raise UsageError(f"max_num_seqs is {max_num_seqs}. Use 1 or more.")


def _check_prompt(request: Request, max_model_len: int, vocab: int) -> None:
    prompt, name = request.prompt, f"the prompt of sample {request.sample_id}"
    if not len(prompt):
        raise UsageError(
            f"{name} is empty. Begin it with a token, for example the one that begins a text."
        )
    if len(prompt) >= max_model_len:
        raise UsageError(
            f"{name} has {len(prompt)} tokens, which leaves no room for a response in "
            f"max_model_len {max_model_len}. Shorten it, or raise rollout.max_model_len."
        )
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < vocab:
            raise UsageError(
                f"{name} has token {token}, but the model's vocabulary has {vocab}. Use the "
                "tokenizer that belongs to the model."
            )
