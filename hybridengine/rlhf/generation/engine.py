"""engine: the built-in rollout engine, batched sampling over a transformers model.

Sequences run in slots, each with a length of its own; the slot of one that ends goes to the next
prompt at once, and where no prompt waits the batch shrinks. What a sample becomes does not depend
on the others: see `uniforms`. It is no server: one call runs its prompts to the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hybridengine._core import UsageError
from hybridengine.rlhf.generation.decoder import Decoder
from hybridengine.rlhf.generation.params import Generation, SamplingParams
from hybridengine.rlhf.generation.requests import Ints, Requests
from hybridengine.rlhf.generation.sampling import choose
from hybridengine.rlhf.generation.stopping import StopTexts
from hybridengine.rlhf.generation.uniforms import Streams
from hybridengine.rlhf.generation.weights import load_weights


class Engine:
    """Generates with `model`, a causal language model of transformers with SDPA or eager attention.

    `max_model_len`: the most tokens of prompt and response. `max_num_seqs`: the most sequences that
    run at a time, fewer where their keys and values would take more than `cache_bytes`.
    `eos_token_ids` end a response; `pad_token_id` fills prompts up and may be any token.
    `tokenizer` is needed for stop texts only. `device`: that of the weights, by default the
    model's.

    Between calls weights may be written in place, or parameters pointed at other memory: nothing is
    kept of them. The model is as it was when a call returns.
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
        cache_bytes: int | None = None,
    ) -> None:
        _check_sizes(max_model_len, max_num_seqs)
        self._model = model
        self._device = torch.device(model.device if device is None else device)
        self._decoder = Decoder(model, pad_token_id, self._device)
        self._eos = tuple(eos_token_ids)
        self._tokenizer = tokenizer
        self._max_model_len, self._max_num_seqs = max_model_len, max_num_seqs
        self._cache_bytes = cache_bytes

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, sample_ids: Sequence[int]
    ) -> list[Generation]:
        """One response per prompt (token ids), in the order of the prompts.

        Equal (seed, sample id, prompt, weights) give equal tokens, up to rounding, whatever else
        runs. A response is cut where prompt and response reach max_model_len.

        Throws UsageError that names the prompt: on one that is empty, leaves no room or has a token
        beyond the vocabulary, and on logits that are NaN; and on sample ids that are not one for
        each prompt, all different unless greedy.
        """
        if len(prompts) == 0 and len(sample_ids) == 0:
            return []
        requests = Requests(
            prompts,
            params,
            sample_ids,
            max_model_len=self._max_model_len,
            vocab=self._decoder.vocab,
        )
        texts = StopTexts(self._tokenizer, params.stop) if params.stop else None
        slots = self._decoder.slots(
            min(self._max_num_seqs, len(requests)), requests.capacity, self._cache_bytes
        )
        try:
            with self._decoder.running():
                _Run(self._decoder, requests, params, self._stop_table(params), texts, slots).run()
        except BaseException:
            self.free()  # it may hold NaN, which would spread from hidden positions
            raise
        return requests.generations()

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See weights.load_weights()."""
        load_weights(self._model, tensors)

    def free(self) -> None:
        """Drops keys and values; the next call makes room anew."""
        self._decoder.free()

    def _stop_table(self, params: SamplingParams) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """bool [V]: the tokens that end a response."""
        table = np.zeros(self._decoder.vocab, bool)
        for token in (*(() if params.ignore_eos else self._eos), *params.stop_token_ids):
            if not 0 <= token < len(table):
                raise UsageError(
                    f"token {token} is to end responses, but the model's vocabulary has "
                    f"{len(table)}. Use the tokenizer and the generation_config.json that belong "
                    "to the model, and mend stop_token_ids."
                )
            table[token] = True
        return table


class _Run:
    """One call. `_live` are the numbers of the requests in slots 0, 1, ...; those from `_waiting`
    on have not begun."""

    def __init__(
        self,
        decoder: Decoder,
        requests: Requests,
        params: SamplingParams,
        stop_table: np.ndarray[Any, np.dtype[np.bool_]],
        texts: StopTexts | None,
        slots: int,
    ) -> None:
        self._decoder, self._requests, self._params = decoder, requests, params
        self._stop_table, self._texts = stop_table, texts
        self._streams = Streams(params.seed, requests.sample_ids)
        self._live = np.arange(slots)
        self._waiting = slots

    def run(self) -> None:
        self._enter(self._live)
        while len(self._live):
            self._step()
            done = self._requests.ended(self._live)
            if done.any():
                self._replace(np.flatnonzero(done))

    def _step(self) -> None:
        live, requests = self._live, self._requests
        logits = self._decoder.step(*requests.inputs(live))
        if self._params.min_tokens:
            logits = self._without_ends(logits)
        drawn = torch.from_numpy(self._streams.draw(live, requests.counts[live]))
        chosen, scored = choose(logits, self._params, drawn.to(logits.device))
        tokens = chosen.cpu().numpy()
        requests.take(live, tokens, scored.cpu().numpy())
        requests.stop(live[self._stop_table[tokens]])
        if self._texts is not None:
            pairs = zip(live.tolist(), tokens.tolist(), strict=True)
            found = [which for which, token in pairs if self._texts.completes(which, token)]
            ended = np.array(found, np.int64)
            requests.stop(ended[requests.counts[ended] > self._params.min_tokens])

    def _without_ends(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits` [B, V] with -inf at the tokens that end a response, where it is too short."""
        short = self._requests.counts[self._live] < self._params.min_tokens
        banned = torch.from_numpy(short[:, None] & self._stop_table)
        return logits.masked_fill(banned.to(logits.device), -torch.inf)

    def _replace(self, holes: Ints) -> None:
        """Gives the slots `holes` to prompts that wait; sequences from the end fill the others."""
        entering = min(len(holes), len(self._requests) - self._waiting)
        if entering:
            self._live[holes[:entering]] = np.arange(self._waiting, self._waiting + entering)
            self._waiting += entering
            self._enter(holes[:entering])
        if entering < len(holes):
            self._shrink(holes[entering:])

    def _enter(self, slots: Ints) -> None:
        which = self._live[slots]
        self._decoder.enter(slots, [self._requests.prompts[number] for number in which])
        self._streams.join(which)

    def _shrink(self, holes: Ints) -> None:
        size = len(self._live) - len(holes)
        dst = holes[holes < size]
        src = np.setdiff1d(np.arange(size, len(self._live)), holes)
        if len(src):
            self._live[dst] = self._live[src]
            _, positions = self._requests.inputs(self._live[dst])
            self._decoder.move(src, dst, int(positions.max()))
        self._live = self._live[:size]


def _check_sizes(max_model_len: int, max_num_seqs: int) -> None:
    if max_model_len < 2:
        raise UsageError(
            f"max_model_len is {max_model_len}. Use 2 or more: a token of a prompt and one of its "
            "response."
        )
    if max_num_seqs < 1:
        raise UsageError(f"max_num_seqs is {max_num_seqs}. Use 1 or more.")
