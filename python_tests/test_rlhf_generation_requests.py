"""The built-in engine as a server of requests: they come, go and change at any time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from generation_models import engine, ids, make_model, prompts

from hybridengine import UsageError
from hybridengine.rlhf.generation import Engine, Generation, Request, SamplingParams, generate

pytestmark = pytest.mark.python

_PARAMS = SamplingParams(max_tokens=20, seed=5)


def _same(found: Generation, expected: Generation) -> bool:
    """Up to rounding, which depends on what runs beside it."""
    facts = [(each.ids, each.versions, each.finish_reason) for each in (found, expected)]
    return facts[0] == facts[1] and found.log_probs == pytest.approx(expected.log_probs, abs=1e-9)


def _alone(model: Any, prompt: list[int], params: SamplingParams, sample: int) -> Generation:
    return generate(engine(model), [prompt], params, [sample])[0]


def _drain(server: Engine, steps: int = 3) -> dict[int, Generation]:
    found: dict[int, Generation] = {}
    while True:
        before = server.poll(steps)
        found.update(before)
        if not before and not server.unfinished:
            return found


def test_requests_that_come_late_are_what_they_are_alone() -> None:
    model = make_model()
    given = prompts(12)
    server, found = engine(model, 3), {}
    for prompt, sample in zip(given, range(12), strict=True):
        assert server.submit(Request(prompt, _PARAMS, sample)) == sample
        found.update(server.poll(2))
    found.update(_drain(server))
    for sample, prompt in enumerate(given):
        assert _same(found[sample], _alone(model, prompt, _PARAMS, sample))


def test_a_longer_request_gets_room_while_others_run() -> None:
    model, server = make_model(), engine(make_model(), 4)
    short, long = SamplingParams(30, ignore_eos=True), SamplingParams(50, ignore_eos=True)
    wanted = [([3, 4], short), ([5, 6, 7], long), ([8], short)]
    for sample, (prompt, params) in enumerate(wanted):
        server.submit(Request(prompt, params, sample))
        assert server.poll(5) == []
    found = _drain(server)
    for sample, (prompt, params) in enumerate(wanted):
        assert _same(found[sample], _alone(model, prompt, params, sample))


def test_one_that_needs_more_than_the_bytes_left_waits() -> None:
    position = 2 * 2 * 2 * 8 * 8  # layers, keys and values, kv heads, head size, bytes of float64
    held: list[int] = []

    def left() -> int:
        return 40 * position - sum(held)

    model, server = make_model(), engine(make_model(), 4, cache_bytes=left)
    short, long = SamplingParams(9, ignore_eos=True), SamplingParams(29, ignore_eos=True)
    server.submit(Request([3, 4], short, 0))
    server.submit(Request([3, 5], short, 1))
    assert server.poll(4) == []
    held.append(20 * position)  # what the first two hold is no longer free
    server.submit(Request([4, 5], long, 2))
    found = _drain(server)
    assert _same(found[2], _alone(model, [4, 5], long, 2))
    assert list(found) == [0, 1, 2]


def test_ways_to_sample_may_be_mixed() -> None:
    model, server = make_model(), engine(make_model(), 4)
    ways: list[dict[str, Any]] = [
        {},
        {"greedy": True},
        {"temperature": 0.5, "seed": 9},
        {"top_k": 3, "stop_token_ids": (7,)},
        {"seed": 6, "max_tokens": 3},
    ]
    given = [SamplingParams(**{"max_tokens": 12, **way}) for way in ways]
    for sample, params in enumerate(given):
        server.submit(Request([4, 5], params, sample))
    found = _drain(server)
    for sample, params in enumerate(given):
        assert _same(found[sample], _alone(model, [4, 5], params, sample))


def test_what_is_aborted_goes_on_elsewhere_as_if_it_had_not_been() -> None:
    model = make_model()
    params = SamplingParams(max_tokens=24, seed=3, ignore_eos=True)
    whole = generate(engine(model), [[3, 4]], params, [7])[0]
    server = engine(model)
    server.submit(Request([3, 4], params, 7))
    server.submit(Request([5], params, 8))
    server.poll(10)
    ((number, part),) = server.abort([0])
    assert (number, part.finish_reason, part.ids) == (0, "abort", whole.ids[:10])
    rest = SamplingParams(max_tokens=14, seed=3, ignore_eos=True)
    again = server.submit(Request([3, 4, *part.ids], rest, 7, drawn=10))
    found = _drain(server)
    assert part.ids + found[again].ids == whole.ids
    assert part.log_probs + found[again].log_probs == pytest.approx(whole.log_probs, abs=1e-9)
    assert _same(found[1], _alone(model, [5], params, 8))


def test_abort_ends_all_also_those_that_wait() -> None:
    server = engine(make_model(), 2)
    for sample in range(5):
        server.submit(Request([3], SamplingParams(9, ignore_eos=True), sample))
    server.poll(4)
    found = dict(server.abort())
    assert sorted(found) == [0, 1, 2, 3, 4] and server.unfinished == 0
    assert [len(found[number].ids) for number in range(5)] == [4, 4, 0, 0, 0]
    assert server.poll() == [] and server.abort() == []
    server.free()


def test_tokens_carry_the_version_of_their_weights() -> None:
    model, server = make_model(), engine(make_model())
    server.submit(Request([3, 4], SamplingParams(8, greedy=True, ignore_eos=True), 0))
    server.poll(5)
    other = {name: -p.detach() for name, p in model.named_parameters()}
    server.load_weights(other, 4)
    found = _drain(server)[0]
    assert found.versions == [0] * 5 + [4] * 3
    before = generate(engine(model), [[3, 4]], SamplingParams(5, greedy=True), [0])[0]
    assert found.ids[:5] == before.ids


def test_a_sleeping_engine_holds_no_weights_and_wakes_with_new_ones() -> None:
    model, server = make_model(), engine(make_model())
    params = SamplingParams(8, greedy=True, ignore_eos=True)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    server.submit(Request([3, 4], params, 0))
    server.poll(2)
    with pytest.raises(UsageError, match="1 sequences run"):
        server.sleep()
    server.abort()
    server.sleep()
    assert {p.untyped_storage().nbytes() for p in server.model.parameters()} == {8}
    server.load_weights(weights, 1)
    assert ids(generate(server, [[3, 4]], params, [0])) == ids(
        generate(engine(model), [[3, 4]], params, [0])
    )
    assert torch.equal(next(iter(server.model.parameters())), next(iter(model.parameters())))
