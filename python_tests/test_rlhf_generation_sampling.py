"""Sampling: frequencies, support and log-probs of choices, and the numbers drawn for them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hybridengine.rlhf.algorithms.logits import token_log_probs
from hybridengine.rlhf.generation.params import SamplingParams
from hybridengine.rlhf.generation.sampling import choose, support
from hybridengine.rlhf.generation.uniforms import Streams, philox, uniforms

pytestmark = pytest.mark.python

# Of chi-square with 7 degrees of freedom, exceeded once in 1000 times.
_CHI_SQUARE_7 = 24.3


def params(**facts: float) -> SamplingParams:
    return SamplingParams(max_tokens=1, **facts)  # type: ignore[arg-type]


def kept_tokens(logits: list[float], **facts: float) -> list[int]:
    found = support(torch.tensor([logits], dtype=torch.float64), params(**facts))
    return list(range(len(logits))) if found is None else found[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize("facts", [{}, {"temperature": 0.5}, {"top_p": 0.8}, {"top_k": 8}])
def test_frequencies_are_those_of_the_distribution(facts: dict[str, float]) -> None:
    logits = torch.tensor([0.1, 1.2, -0.7, 0.4, 2.0, -1.5, 0.9, 0.0], dtype=torch.float64)
    logits = torch.cat([logits, torch.full((4,), -torch.inf, dtype=torch.float64)])
    scaled = (logits / facts.get("temperature", 1.0)).tolist()
    weights = [math.exp(each) for each in scaled]
    if "top_p" in facts:
        total, likely = 0.0, sorted(weights, reverse=True)
        for end, weight in enumerate(likely):
            total += weight
            if total >= facts["top_p"] * sum(weights):
                weights = [each if each >= likely[end] else 0.0 for each in weights]
                break
    probs = [weight / sum(weights) for weight in weights]
    size = 40_000
    drawn = torch.from_numpy(
        uniforms(np.full(size, 11), np.arange(size), np.zeros(size, np.int64), 1)[:, 0]
    )
    tokens, log_probs = choose(logits.expand(size, -1), params(**facts), drawn)
    counts = torch.bincount(tokens, minlength=len(probs)).tolist()
    assert all(count == 0 for count, prob in zip(counts, probs, strict=True) if prob == 0)
    statistic = sum(
        (count - size * prob) ** 2 / (size * prob)
        for count, prob in zip(counts, probs, strict=True)
        if prob
    )
    assert statistic < _CHI_SQUARE_7
    expected = [math.log(probs[token]) for token in tokens[:100].tolist()]
    assert log_probs[:100].tolist() == pytest.approx(expected, abs=1e-9)


def test_b33_log_probs_are_after_the_temperature_and_over_the_support() -> None:
    logits = torch.tensor([[2.0, 0.0]])
    tokens, found = choose(logits, params(temperature=0.5), torch.zeros(1, dtype=torch.float64))
    assert tokens.tolist() == [0]
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(-0.0181499, abs=1e-7)
    trainer = token_log_probs(logits, tokens, temperature=0.5)
    assert float((trainer - found).exp()) == pytest.approx(1, abs=1e-6)

    logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
    facts = params(top_p=0.9)
    tokens, found = choose(logits, facts, torch.zeros(1, dtype=torch.float64))
    assert float(found) == pytest.approx(math.log(0.6 / 0.9), abs=1e-6)
    cut = token_log_probs(logits, tokens, support=support(logits, facts))
    whole = token_log_probs(logits, tokens)
    assert float(cut - found) == pytest.approx(0, abs=1e-6)
    assert float(found - whole) == pytest.approx(0.1053605, abs=1e-6)


def test_support() -> None:
    logits = [math.log(each) for each in (0.1, 0.4, 0.2, 0.3)]
    assert kept_tokens(logits) == [0, 1, 2, 3]
    assert kept_tokens(logits, top_k=2) == [1, 3]
    assert kept_tokens(logits, top_k=9) == [0, 1, 2, 3]
    assert kept_tokens(logits, top_p=0.69) == [1, 3]
    assert kept_tokens(logits, top_p=0.71) == [1, 2, 3]
    assert kept_tokens(logits, top_p=1e-9) == [1]
    # top_p counts what top_k left: 0.4 of 0.7 is less than 0.6 of it, 0.4 and 0.3 are all of it.
    assert kept_tokens(logits, top_k=2, top_p=0.56) == [1]
    assert kept_tokens(logits, top_k=2, top_p=0.58) == [1, 3]
    # At a low temperature the likeliest token has more of the mass.
    assert kept_tokens(logits, top_p=0.5, temperature=0.25) == [1]
    assert kept_tokens([1.0, 1.0, 1.0], top_p=0.5) == [0, 1]


def test_top_k_of_equal_logits_keeps_k() -> None:
    assert len(kept_tokens([1.0] * 6, top_k=2)) == 2


def test_no_number_picks_an_impossible_token() -> None:
    logits = torch.tensor([[-torch.inf, 3.0, -torch.inf, -90.0, -torch.inf]]).expand(4, -1)
    last = 1 - 2.0**-52
    drawn = torch.tensor([0.0, 2.0**-52, 0.5, last], dtype=torch.float64)
    tokens, _ = choose(logits, params(), drawn)
    assert tokens.tolist() == [1, 1, 1, 1]
    uneven = torch.randn(1000, 37, generator=torch.Generator().manual_seed(0)) * 5
    uneven[:, 30:] = -torch.inf
    tokens, log_probs = choose(uneven, params(), torch.full((1000,), last, dtype=torch.float64))
    assert int(tokens.max()) < 30
    assert bool(log_probs.isfinite().all())


def test_half_precision_is_widened() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.bfloat16)
    tokens, found = choose(logits, params(temperature=0.7), torch.zeros(1, dtype=torch.float64))
    expected = (logits.double()[0] / 0.7).log_softmax(-1)[tokens[0]]
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(expected), abs=1e-6)


# Known answers of Philox4x32-10: (counter, key, words).
_KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), _KNOWN)
def test_philox_gives_the_known_words(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    a, b, c, d = (np.array([word], np.uint64) for word in counter)
    found = philox((a, b, c, d), (np.array([key[0]], np.uint64), np.array([key[1]], np.uint64)))
    assert tuple(int(word[0]) for word in found) == words


def test_numbers_are_uniform_and_depend_on_all_they_should() -> None:
    samples, first = np.arange(200), np.zeros(200, np.int64)
    seeds = np.full(200, 3)
    numbers = uniforms(seeds, samples, first, 100)
    assert numbers.shape == (200, 100)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=8, range=(0, 1))[0]
    assert float(((counts - 2500) ** 2 / 2500).sum()) < _CHI_SQUARE_7
    assert len(np.unique(numbers)) == numbers.size
    for other in (
        uniforms(seeds + 1, samples, first, 100),
        uniforms(seeds + 2**32, samples, first, 100),
        uniforms(seeds, samples + 200, first, 100),
        uniforms(seeds, samples, first + 100, 100),
    ):
        assert not np.isin(other, numbers).any()
    assert (uniforms(seeds, samples, first + 7, 3) == numbers[:, 7:10]).all()
    mixed = uniforms(np.where(samples % 2, 3, 4), samples, first, 100)
    assert (mixed[1::2] == numbers[1::2]).all() and not np.isin(mixed[::2], numbers).any()


def test_streams_hand_out_the_same_numbers_whoever_joins_when_and_moves() -> None:
    seeds, samples = np.array([1, 7, 1]), np.array([5, 9, 2**40])
    expected = uniforms(seeds, samples, np.zeros(3, np.int64), 90)
    streams, joined, first = Streams(4), {0: 0, 1: 7, 2: 16}, {0: 0, 1: 30, 2: 3}
    sequences: list[int] = []  # by slot
    for step in range(50):
        for sequence, at in joined.items():
            if at == step:
                slot = np.array([len(sequences)])
                which = slice(sequence, sequence + 1)
                begin = np.array([first[sequence]])
                streams.join(slot, seeds[which].astype(np.uint64), samples[which], begin)
                sequences.append(sequence)
        if step == 20:  # the first ends, the last takes its slot
            streams.move(np.array([2]), np.array([0]))
            sequences = [2, 1]
        tokens = np.array([step - joined[each] + first[each] for each in sequences])
        assert (streams.draw(tokens) == expected[sequences, tokens]).all()
