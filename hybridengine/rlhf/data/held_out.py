"""held_out: pairs that a reward model is measured on and never fitted to."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy

from hybridengine.rlhf.data.samples import Pair


def hold_out(pairs: Sequence[Pair], share: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """The pairs to fit to, and `share` of the prompts with all their pairs, both in order: answers
    to one prompt have too much in common to lie on both sides.

    The same for the same prompts and seed, with every version of numpy. One prompt at least is held
    out, and one kept, where there are two and a share.
    """
    numbers: dict[str, int] = {}
    prompts = [numbers.setdefault(json.dumps(pair.prompt), len(numbers)) for pair in pairs]
    count = min(max(1, round(share * len(numbers))), len(numbers) - 1) if share > 0 else 0
    order = numpy.random.Philox(numpy.random.SeedSequence([seed])).random_raw(len(numbers))
    chosen = set(numpy.argsort(order, kind="stable")[:count].tolist())
    kept = [pair for pair, prompt in zip(pairs, prompts, strict=True) if prompt not in chosen]
    return kept, [pair for pair, prompt in zip(pairs, prompts, strict=True) if prompt in chosen]
