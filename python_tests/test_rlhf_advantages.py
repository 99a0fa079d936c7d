"""Advantages, whitening, groups and reward shaping: against plain float64 loops."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import run_threads
from rlhf_reference import Batch, gae_row, group_advantages, random_batch, whitened

from hybridengine import Communicator, UsageError, masked_mean_var
from hybridengine.rlhf.algorithms import (
    Advantages,
    Rollout,
    advantage,
    explained_variance,
    group_filter,
    mean_and_var,
    overlong_penalty,
    sum_over,
    token_rewards,
    whiten,
)

pytestmark = pytest.mark.python

_RTOL = {torch.float64: 1e-6, torch.float32: 1e-4}
_GAMMA, _LAM = 0.97, 0.9


def _rollout(batch: Batch) -> Rollout:
    given = {name: batch.tensors[name] for name in ("rewards", "values")}
    return Rollout(mask=batch.mask, **given, **batch.rows)


def _scored(scores: list[float], groups: list[int], dtype: torch.dtype) -> Rollout:
    """One row a score, of two tokens, the first of which is not trainable."""
    mask = torch.tensor([[False, True]] * len(scores))
    rewards = token_rewards(torch.tensor(scores, dtype=dtype), mask)
    return Rollout(rewards, mask, groups=torch.tensor(groups))


def _agree(values: torch.Tensor, batch: Batch, expected: list[list[float]]) -> None:
    flat = [value for row in expected for value in row]
    rtol = _RTOL[values.dtype]
    assert values[batch.mask].tolist() == pytest.approx(flat, rel=rtol, abs=rtol / 10)
    assert (values[~batch.mask] == 0).all()


@pytest.mark.parametrize("dtype", _RTOL)
@pytest.mark.parametrize("normalize", [False, True])
def test_gae_against_its_definition(dtype: torch.dtype, normalize: bool) -> None:
    batch = random_batch(11)
    options = {"gamma": _GAMMA, "lam": _LAM, "normalize": normalize}
    result = advantage.bind("gae", **options)(_rollout(batch.cast(dtype)))
    truncated = batch.rows["truncated"]
    assert truncated.any() and not truncated.all()
    bootstraps = torch.where(truncated, batch.rows["last_values"], 0).tolist()
    values = batch.rows_of("values")
    rows = zip(batch.rows_of("rewards"), values, bootstraps, strict=True)
    expected = [gae_row(*row, _GAMMA, _LAM) for row in rows]
    returns = [
        [a + v for a, v in zip(*pair, strict=True)] for pair in zip(expected, values, strict=True)
    ]
    _agree(result.advantages, batch, whitened(expected) if normalize else expected)
    assert result.returns is not None
    _agree(result.returns, batch, returns)


def test_gae_carries_across_masked_tokens_with_one_discount_a_step() -> None:
    # Reward 1 on the last step, nothing expected: gamma lam per step, however long the tool talks.
    mask = torch.tensor([[False, True, False, False, False, True, True, False]])
    rewards = torch.tensor([[torch.nan, 0, torch.nan, 9, -9, 0, 1, torch.nan]])
    values = torch.where(mask, 0.0, torch.nan)
    options = {"gamma": 0.5, "lam": 0.5, "normalize": False}
    result = advantage.bind("gae", **options)(Rollout(rewards, mask, values=values))
    assert result.advantages.tolist() == [[0, 1 / 16, 0, 0, 0, 1 / 4, 1, 0]]


def test_truncated_rows_bootstrap_and_finished_ones_do_not() -> None:
    mask = torch.tensor([[True, True, False]] * 2)
    rollout = Rollout(
        torch.zeros(2, 3),
        mask,
        values=torch.zeros(2, 3),
        truncated=torch.tensor([True, False]),
        last_values=torch.tensor([4.0, torch.nan]),
    )
    result = advantage.bind("gae", gamma=0.5, lam=1.0, normalize=False)(rollout)
    assert result.advantages.tolist() == [[1, 2, 0], [0, 0, 0]]
    lacking = Rollout(
        torch.zeros(2, 3), mask, values=torch.zeros(2, 3), truncated=rollout.truncated
    )
    with pytest.raises(UsageError, match="needs last_values"):
        advantage.get("gae")(lacking)


@pytest.mark.parametrize("dtype", _RTOL)
@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_group_advantages_against_loops(name: str, dtype: torch.dtype) -> None:
    batch = random_batch(12, num_rows=9)
    result = advantage.get(name)(_rollout(batch.cast(dtype)))
    rewards = batch.rows_of("rewards")
    per_row = group_advantages(name, rewards, batch.rows["groups"].tolist())
    expected = [[a] * len(row) for a, row in zip(per_row, rewards, strict=True)]
    _agree(result.advantages, batch, expected)
    assert result.returns is None


@pytest.mark.parametrize("dtype", _RTOL)
def test_reinforce_plus_plus_and_remax_against_loops(dtype: torch.dtype) -> None:
    batch = random_batch(13)
    rollout = _rollout(batch.cast(dtype))
    rewards = batch.rows_of("rewards")

    def to_go(gamma: float) -> list[list[float]]:
        return [gae_row(row, [0.0] * len(row), 0.0, gamma, 1.0) for row in rewards]

    result = advantage.bind("reinforce++", gamma=_GAMMA)(rollout)
    _agree(result.advantages, batch, whitened(to_go(_GAMMA)))
    baselines = batch.rows["baselines"].tolist()
    expected = [[x - b for x in row] for row, b in zip(to_go(1.0), baselines, strict=True)]
    _agree(advantage.get("remax")(rollout).advantages, batch, expected)
    per_row = group_advantages("centred", rewards, batch.rows["groups"].tolist())
    centred = [[a] * len(row) for a, row in zip(per_row, rewards, strict=True)]
    result = advantage.get("reinforce++-baseline")(rollout)
    _agree(result.advantages, batch, whitened(centred))


@pytest.mark.parametrize("dtype", _RTOL)
@pytest.mark.parametrize("name", ["gae", "reinforce++", "reinforce++-baseline"])
def test_whitening_is_global_over_any_number_of_ranks(name: str, dtype: torch.dtype) -> None:
    whole = random_batch(14).cast(dtype)
    expected = advantage.get(name)(_rollout(random_batch(14))).advantages
    assert expected[whole.mask].std() > 0.5
    for cut in ([[0, 1, 2, 3, 4, 5]], [[0, 1, 2], [3, 4, 5]], [[3, 4, 5], [], [0, 1, 2]]):
        parts = [_rollout(whole.take(rows)) for rows in cut]

        def of_rank(comm: Communicator, parts: list[Rollout] = parts) -> Advantages:
            return advantage.get(name)(parts[comm.rank], all_reduce=sum_over(comm))

        results = run_threads(len(cut), of_rank, transport="loopback")
        for rows, result in zip(cut, results, strict=True):
            rtol = _RTOL[dtype]
            torch.testing.assert_close(
                result.advantages, expected[rows].to(dtype), rtol=rtol, atol=rtol / 10
            )


@pytest.mark.parametrize("dtype", _RTOL)
@pytest.mark.parametrize("name", advantage.names())
def test_padding_and_inserted_masked_tokens_change_no_advantage(
    name: str, dtype: torch.dtype
) -> None:
    batch = random_batch(15).cast(dtype)
    wide = batch.with_inserted([0, 2, 2, 8], width=17)
    expected = advantage.get(name)(_rollout(batch)).advantages[batch.mask]
    result = advantage.get(name)(_rollout(wide)).advantages
    torch.testing.assert_close(result[wide.mask], expected, rtol=_RTOL[dtype], atol=1e-9)
    assert (result[~wide.mask] == 0).all()
    assert expected.abs().max() > 0.1


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce++-baseline"])
@pytest.mark.parametrize("scores", [[0.7] * 4, [0.3], [0.3] * 13, [0.1, 0.1, 0.1], [-5e7] * 3])
@pytest.mark.parametrize("dtype", _RTOL)
def test_b32_equal_rewards_and_a_group_of_one_give_exactly_0(
    name: str, scores: list[float], dtype: torch.dtype
) -> None:
    result = advantage.get(name)(_scored(scores, [3] * len(scores), dtype))
    assert (result.advantages == 0).all()


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce++-baseline"])
def test_b32_a_nearly_constant_group_has_no_huge_advantage(name: str) -> None:
    result = advantage.get(name)(_scored([0.3] * 6 + [0.9], [0] * 7, torch.float32))
    assert 0.5 < float(result.advantages.abs().max()) < 10


@pytest.mark.parametrize("name", ["gae", "reinforce++"])
def test_b32_whitening_equal_values_gives_0(name: str) -> None:
    for number in range(1, 40):  # of 0.1 the mean is often not 0.1, in float64 as well
        rollout = _scored([0.1] * number, [0] * number, torch.float64)
        rollout = Rollout(rollout.rewards, rollout.mask, values=torch.zeros(number, 2))
        assert (advantage.get(name)(rollout).advantages == 0).all()


def test_moments_over_ranks_are_those_of_the_engine() -> None:
    batch = random_batch(16)
    parts = [batch.take(rows) for rows in ([0, 5], [1], [], [2, 3, 4])]

    def of_rank(comm: Communicator) -> tuple[list[float], list[float]]:
        values, mask = parts[comm.rank].tensors["values"], parts[comm.rank].mask
        ours = mean_and_var(values, mask, all_reduce=sum_over(comm))
        engine = masked_mean_var(values, mask, comm)
        return [float(x) for x in ours], [engine.mean, engine.variance, engine.count]

    for ours, engine in run_threads(4, of_rank, transport="loopback"):
        assert ours == pytest.approx(engine, rel=1e-12)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_variance_that_values_explain(num_ranks: int) -> None:
    batch = random_batch(8)
    given = batch.tensors
    mask = batch.mask.numpy()
    returns, values = given["returns"].numpy()[mask], given["values"].numpy()[mask]
    expected = 1 - (returns - values).var() / returns.var()

    def of_rank(comm: Communicator) -> float:
        part = batch.take(list(range(len(mask)))[comm.rank :: num_ranks])
        columns = (part.tensors[name] for name in ("values", "returns"))
        return explained_variance(*columns, part.mask, all_reduce=sum_over(comm))

    found = run_threads(num_ranks, of_rank, transport="loopback")
    assert found == pytest.approx([expected] * num_ranks, rel=1e-12)
    same = torch.ones_like(given["returns"])
    assert math.isnan(explained_variance(same, same, batch.mask))


def test_the_variance_survives_a_large_mean() -> None:
    values = torch.tensor([[1e8 + 1, 1e8 + 3, torch.nan]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False]])
    mean, var, num = mean_and_var(values, mask)
    assert (float(mean), float(var), int(num)) == (1e8 + 2, 1.0, 2)
    assert whiten(values, mask)[0].tolist() == pytest.approx([-1, 1, 0])
    small = torch.tensor([[1.0, 1.0 + 2**-23]])  # one step of float32 apart: a real difference
    assert (whiten(small, torch.ones_like(small, dtype=torch.bool)) != 0).all()


@pytest.mark.parametrize("name", ["gae", "reinforce++"])
def test_a_nan_that_counts_is_not_hidden(name: str) -> None:
    rewards = torch.tensor([[0.0, math.nan], [1.0, 2.0]])
    rollout = Rollout(rewards, torch.ones(2, 2, dtype=torch.bool), values=torch.zeros(2, 2))
    assert advantage.get(name)(rollout).advantages.isnan().any()


def test_a_small_difference_between_large_scores_is_not_lost() -> None:
    rollout = _scored([1e8, 1e8 + 1, 1e8 + 2], [0, 0, 0], torch.float64)
    assert advantage.get("rloo")(rollout).advantages[:, 1].tolist() == [-1.5, 0, 1.5]
    assert advantage.bind("grpo", eps=0.0)(rollout).advantages[:, 1].tolist() == [-1, 0, 1]


def test_rows_without_trainable_tokens_are_not_in_their_group() -> None:
    mask = torch.tensor([[True], [True], [False]])
    rewards = torch.tensor([[1.0], [3.0], [torch.nan]])
    result = advantage.get("rloo")(Rollout(rewards, mask, groups=torch.zeros(3, dtype=torch.int32)))
    assert result.advantages.tolist() == [[-2.0], [2.0], [0.0]]


@pytest.mark.parametrize("name", advantage.names())
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (2, 0)])
def test_empty_rollouts(name: str, shape: tuple[int, int]) -> None:
    zeros, row = torch.zeros(shape), torch.zeros(shape[0])
    fields = {"values": zeros, "baselines": row, "groups": row.long()}
    rollout = Rollout(zeros, torch.zeros(shape, dtype=torch.bool), **fields)
    assert advantage.get(name)(rollout).advantages.shape == shape


def test_dapo_keeps_groups_whose_scores_differ() -> None:
    scores = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.3])
    groups = torch.tensor([5, 5, -2, -2, 9, 9, 7])
    kept = group_filter.get("dapo")(scores, groups)
    assert kept.tolist() == [True, True, False, False, False, False, False]
    assert group_filter.get("none")(scores, groups).all()


@pytest.mark.parametrize("name", ["grpo", "rloo"])
@pytest.mark.parametrize("score", [0.1, 1 / 3, -1e17, 1e-300])
def test_equal_scores_on_several_ranks_give_exactly_0(name: str, score: float) -> None:
    """The sum of seven 0.1, divided by seven, is not 0.1; the sums travel, the scores do not."""
    mixed = _scored([score] * 7 + [2.0, 5.0], [1] * 7 + [0] * 2, torch.float64)

    def of_rank(comm: Communicator) -> list[float]:
        rows = slice(comm.rank, None, 3)
        sums: list[int] = []

        def all_reduce(values: torch.Tensor) -> torch.Tensor:
            sums.append(values.numel())
            return sum_over(comm)(values)

        assert mixed.groups is not None
        part = Rollout(
            mixed.rewards[rows], mixed.mask[rows], groups=mixed.groups[rows], num_groups=2
        )
        result = advantage.bind(name, all_reduce=all_reduce)(part)
        assert set(sums) == {2} and len(sums) <= 4  # a number a group
        return result.advantages[:, 1].tolist()

    found = run_threads(3, of_rank, transport="loopback")
    assert [found[row % 3][row // 3] for row in range(7)] == [0.0] * 7
    expected = advantage.get(name)(_scored([2.0, 5.0], [0, 0], torch.float64)).advantages[:, 1]
    assert [found[row % 3][row // 3] for row in (7, 8)] == pytest.approx(expected.tolist())


def test_group_numbers_beyond_their_count_are_refused() -> None:
    rollout = _scored([1.0, 2.0], [0, 4], torch.float64)
    beyond = Rollout(rollout.rewards, rollout.mask, groups=rollout.groups, num_groups=4)
    with pytest.raises(UsageError, match=r"from 0 to 4, and num_groups is 4\. Number those of all"):
        advantage.get("grpo")(beyond)


def test_overlong_penalty_falls_in_a_straight_line() -> None:
    lengths = torch.tensor([0, 12, 13, 16, 20, 21])
    penalty = overlong_penalty(lengths, max_length=20, buffer=8, factor=0.5)
    assert penalty.tolist() == [0, 0, -0.0625, -0.25, -0.5, -0.5]
    with pytest.raises(UsageError, match="buffer=0 does not fit in max_length=20"):
        overlong_penalty(lengths, max_length=20, buffer=0)


def test_the_score_lies_on_the_last_trainable_token() -> None:
    mask = torch.tensor([[True, True, False, False], [False, True, False, True], [False] * 4])
    scores = torch.tensor([1.0, 2.0, math.nan])
    assert token_rewards(scores, mask).tolist() == [[0, 1, 0, 0], [0, 0, 0, 2], [0, 0, 0, 0]]
    kl = torch.where(mask, 3.0, torch.nan)
    rewards = token_rewards(scores, mask, kl=kl, kl_coef=0.5)
    assert rewards.tolist() == [[-1.5, -0.5, 0, 0], [0, -1.5, 0, 0.5], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: token_rewards(torch.tensor([1.0, math.nan]), m), "score of row 1 is nan"),
        (lambda m: token_rewards(torch.tensor([math.inf, 1.0]), m), "score of row 0 is inf"),
        (
            lambda m: group_filter.get("dapo")(torch.tensor([1.0, math.nan]), m.long()[:, 0]),
            "score of row 1 is nan",
        ),
        (
            lambda m: advantage.get("grpo")(Rollout(m / 0, m, groups=m.long()[:, 0])),
            "score of row 0 is inf",
        ),
        (lambda m: token_rewards(torch.zeros(3), m), r"scores is \[3\], but mask has 2 rows"),
        (lambda m: token_rewards(torch.zeros(2), m, kl_coef=0.1), "kl is None"),
        (lambda m: Rollout(torch.zeros(2, 2), m), r"rewards is \[2, 2\], mask is \[2, 3\]"),
        (lambda m: advantage.get("gae")(Rollout(m.float(), m)), "'gae' needs values"),
        (lambda m: advantage.get("remax")(Rollout(m.float(), m)), "'remax' needs baselines"),
        (lambda m: advantage.get("grpo")(Rollout(m.float(), m)), "'grpo' needs groups"),
        (
            lambda m: advantage.get("rloo")(Rollout(m.float(), m, groups=torch.zeros(2))),
            "groups is torch.float32",
        ),
        (
            lambda m: Rollout(m.float(), m, truncated=torch.zeros(2)),
            "truncated is torch.float32, not bool",
        ),
        (
            lambda m: advantage.get("gae")(Rollout(m.float(), m, values=m.float()), lam=1.5),
            "lam=1.5 is out of range: it must be at least 0 and at most 1",
        ),
        (
            lambda m: advantage.get("reinforce++")(Rollout(m.float(), m), gamma=math.nan),
            "gamma=nan is out of range",
        ),
    ],
)
def test_bad_input_is_named(call: Callable[[torch.Tensor], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(torch.ones(2, 3, dtype=torch.bool))
