"""Tokens per second of the built-in rollout engine, beside transformers' own generate. One process,
one thread, models of random weights on the CPU.

`tiny` and `medium` sample as many tokens in every row, as many rows at a time as there are. In
`ragged` a response ends after 16 tokens on average and rows are four times the slots: the engine
refills a slot that is done, transformers waits for the longest row of each batch. `#wrong` counts
tokens that differ from transformers' greedy ones, both in float64.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hybridengine._bench import results
from hybridengine._bench.flags import Options, parse
from hybridengine._bench.index import INDEX
from hybridengine._core import UsageError
from hybridengine.rlhf.generation import Engine, SamplingParams, generate

_PAD = 0
_CHECKED_ROWS = 8


@dataclass(frozen=True)
class Case:
    """`ends`: how many tokens of the vocabulary end a response; 0: all run to `tokens`."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    rows: int
    slots: int
    prompt: int
    tokens: int
    ends: int = 0

    @property
    def eos(self) -> list[int]:
        return list(range(1, 1 + self.ends))


CASES = {
    "tiny": Case(64, 2, 2, 2, 128, rows=128, slots=128, prompt=16, tokens=32),
    "ragged": Case(64, 2, 2, 2, 128, rows=256, slots=64, prompt=16, tokens=64, ends=8),
    "medium": Case(512, 8, 8, 2, 8000, rows=8, slots=8, prompt=32, tokens=32),
}


def main(arguments: list[str]) -> int:
    """Prints a line per case; 1 where a token was wrong, else 0. Throws UsageError."""
    options = parse("rollout", INDEX["rollout"].summary, INDEX["rollout"].flags, arguments)
    results.check_path(options.json_path)
    chosen = [name for name in CASES if not options.only or name.startswith(options.only)]
    if not chosen:
        raise UsageError(f"--only names no case. Cases are {', '.join(CASES)}.")
    shared = results.provenance("rollout", arguments)
    silent = options.json_path == "-"
    if not silent:
        _print_header(shared)
    rows = []
    for name in chosen:
        with _one_thread():
            rows.append(measure(name, CASES[name], options))
        if not silent:
            _print_row(rows[-1])
    if options.json_path is not None:
        results.write(options.json_path, [{**shared, **row} for row in rows])
    return 1 if any(row["nwrong"] for row in rows) else 0


def measure(name: str, case: Case, options: Options) -> dict[str, Any]:
    """Medians over the iterations, in which the two take turns; of their ratios too, so that what
    disturbs both counts less."""
    model = _model(case)
    engine = _engine(model, case)
    prompts = _prompts(case)
    ours: list[float] = []
    theirs: list[float] = []
    for iteration in range(-options.warmup, options.iters):
        params = SamplingParams(case.tokens, ignore_eos=not case.ends, seed=max(iteration, 0))
        found = _rate(lambda params=params: _generated(engine, prompts, params))
        rival = _rate(lambda: _rival(model, case, prompts))
        if iteration >= 0:
            ours.append(found)
            theirs.append(rival)
    rate, rival_rate = statistics.median(ours), statistics.median(theirs)
    return {
        "case": name,
        "rows": case.rows,
        "slots": case.slots,
        "tokens_per_s": rate,
        "transformers_tokens_per_s": rival_rate,
        "ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        "token_seconds": 1 / rate,
        "transformers_token_seconds": 1 / rival_rate,
        "nwrong": _count_wrong(model, case, prompts) if options.check else None,
    }


def _model(case: Case) -> Any:
    try:
        from transformers import Qwen2Config, Qwen2ForCausalLM
    except ImportError as error:
        raise UsageError(
            f"rollout needs transformers: {error}. Use pip install 'hybridengine[rlhf]'."
        ) from error
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=case.hidden,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        num_key_value_heads=case.kv_heads,
        intermediate_size=3 * case.hidden,
        vocab_size=case.vocab,
        tie_word_embeddings=True,
    )
    model: Any = Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]
    return model.eval()


def _engine(model: Any, case: Case) -> Engine:
    return Engine(
        model,
        eos_token_ids=case.eos,
        pad_token_id=_PAD,
        max_model_len=case.prompt + case.tokens,
        max_num_seqs=case.slots,
    )


def _prompts(case: Case) -> list[list[int]]:
    low = 1 + case.ends
    rows: list[list[int]] = torch.randint(low, case.vocab, (case.rows, case.prompt)).tolist()
    return rows


def _generated(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    return [each.ids for each in generate(engine, prompts, params, range(len(prompts)))]


def _rival(
    model: Any, case: Case, prompts: list[list[int]], greedy: bool = False
) -> list[list[int]]:
    """transformers, a batch of `slots` rows after the other; without what pads a row."""
    how = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
    found: list[list[int]] = []
    for first in range(0, len(prompts), case.slots):
        given = torch.tensor(prompts[first : first + case.slots])
        out = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=case.tokens,
            pad_token_id=_PAD,
            eos_token_id=case.eos or None,
            **how,
        )
        found += [_cut(row, set(case.eos)) for row in out[:, case.prompt :].tolist()]
    return found


def _cut(row: list[int], ends: set[int]) -> list[int]:
    end = next((place for place, token in enumerate(row, 1) if token in ends), len(row))
    return row[:end]


def _rate(generate: Any) -> float:
    began = time.perf_counter()
    found = generate()
    return sum(map(len, found)) / (time.perf_counter() - began)


def _count_wrong(model: Any, case: Case, prompts: list[list[int]]) -> int:
    exact, some = model.double(), prompts[:_CHECKED_ROWS]
    params = SamplingParams(case.tokens, greedy=True, ignore_eos=not case.ends)
    found = _generated(_engine(exact, case), some, params)
    expected = _rival(exact, case, some, greedy=True)
    return sum(
        abs(len(a) - len(b)) + sum(x != y for x, y in zip(a, b, strict=False))
        for a, b in zip(found, expected, strict=True)
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _print_header(shared: dict[str, Any]) -> None:
    sys.stdout.write(
        f"# hybridengine {shared['version']} (commit {shared['commit']}), rollout\n"
        f"#{'rows':>9}{'slots':>10}{'ours':>12}{'transformers':>14}{'ratio':>8}{'#wrong':>8}"
        f"  case\n#{'':>19}{'(tokens/s)':>12}{'(tokens/s)':>14}\n"
    )


def _print_row(row: dict[str, Any]) -> None:
    wrong = "N/A" if row["nwrong"] is None else row["nwrong"]
    sys.stdout.write(
        f"{row['rows']:10d}{row['slots']:10d}{row['tokens_per_s']:12.0f}"
        f"{row['transformers_tokens_per_s']:14.0f}{row['ratio']:8.2f}{wrong:>8}  {row['case']}\n"
    )
    sys.stdout.flush()
