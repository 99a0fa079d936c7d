"""From a batch's columns to advantages, against sums written out."""

import math

import pytest
import torch
from ranks import run_threads

from hybridengine import Communicator
from hybridengine.rlhf.algorithms import sum_over
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.schema import Algorithm
from hybridengine.rlhf.roles.advantages import with_advantages

pytestmark = pytest.mark.python

# Two prompts; by row: tokens of the prompt, tokens of the response, score, whether it was cut.
_ROWS = [(0, 2, 3, 1.0, False), (0, 2, 1, 0.0, True), (1, 1, 2, 0.5, False), (1, 1, 2, 0.5, False)]


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([prompt + response for _, prompt, response, _, _ in _ROWS])
    total = int(lengths.sum())
    mask = torch.cat(
        [torch.tensor([False] * prompt + [True] * response) for _, prompt, response, _, _ in _ROWS]
    )

    def noise(size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    return Batch(
        lengths,
        {
            "mask": mask,
            "old_log_probs": noise(total),
            "ref_log_probs": noise(total),
            "rollout_log_probs": noise(total),
            "values": noise(total),
        },
        {
            "group": torch.tensor([group for group, *_ in _ROWS]),
            "scores": torch.tensor([score for *_, score, _ in _ROWS], dtype=torch.float64),
            "truncated": torch.tensor([cut for *_, cut in _ROWS]),
            "last_values": noise(len(_ROWS)),
        },
    )


def _rows(batch: Batch, name: str) -> list[list[float]]:
    return [part.tolist() for part in batch[name].split(batch.lengths.tolist())]


def _algorithm(**changes: object) -> Algorithm:
    algorithm = Algorithm(kl_coef=0.1)
    for name, value in changes.items():
        setattr(algorithm, name, value)
    return algorithm


@pytest.mark.parametrize("truncated", ["terminal", "bootstrap"])
def test_gae_with_the_kl_in_the_reward(truncated: str) -> None:
    """gamma = lam = 1: what is earned from a token on, and behind a cut row its value if asked."""
    batch = _batch()
    algorithm = _algorithm(lam=1.0, normalize_advantages=False, truncated=truncated)
    columns, means = with_advantages(batch, algorithm, kl_coef=0.1)
    found = columns["advantages"].split(batch.lengths.tolist())
    kls = []
    old, ref, values = (_rows(batch, n) for n in ("old_log_probs", "ref_log_probs", "values"))
    for row, (_, prompt, response, score, cut) in enumerate(_ROWS):
        kl = [old[row][t] - ref[row][t] for t in range(prompt, prompt + response)]
        kls += kl
        end = float(batch["last_values"][row]) if cut and truncated == "bootstrap" else 0.0
        for step in range(response):
            earned = score - 0.1 * sum(kl[step:]) + end
            expected = earned - values[row][prompt + step]
            assert float(found[row][prompt + step]) == pytest.approx(expected, rel=1e-12)
        assert (found[row][:prompt] == 0).all()
    assert means["ref_kl"] == pytest.approx(sum(kls) / len(kls))
    assert means["sequence_kl"] == pytest.approx(sum(kls) / len(_ROWS))


def test_running_into_the_limit_is_worth_what_a_wrong_answer_is() -> None:
    """With a critic that expects 0.6, and score 0."""
    batch = _batch()
    flat = torch.full_like(batch["values"], 0.6)
    batch = batch.with_tokens(values=flat, old_log_probs=batch["ref_log_probs"])
    wrong = {"scores": torch.zeros(4, dtype=torch.float64), "last_values": flat[:4]}
    batch = batch.with_rows(**wrong)

    def at_the_end(truncated: str) -> list[float]:
        algorithm = _algorithm(normalize_advantages=False, truncated=truncated)
        found = with_advantages(batch, algorithm, kl_coef=0.1)[0]["advantages"]
        return [round(float(each), 9) for each in found[batch.last_tokens()]]

    assert at_the_end("terminal") == [-0.6] * 4
    assert at_the_end("bootstrap") == [-0.6, 0.0, -0.6, -0.6]


@pytest.mark.parametrize("name", ["gae", "grpo", "rloo", "reinforce++", "reinforce++-baseline"])
def test_masked_responses_are_as_if_they_were_not_there(name: str) -> None:
    algorithm = _algorithm(advantage=name, truncated="mask", rollout_correction="token")
    scores = torch.tensor([1.0, 0.0, 0.5, 0.25], dtype=torch.float64)
    batch = _batch().with_rows(scores=scores)
    columns, means = with_advantages(batch, algorithm, kl_coef=0.1)
    whole = batch.merged(columns)
    assert not whole.padded("mask")[1].any() and whole.padded("mask")[0].any()
    assert (whole.padded("advantages")[1] == 0).all()
    alone = batch.select([0, 2, 3])
    kept = _algorithm(advantage=name, rollout_correction="token")
    expected, expected_means = with_advantages(alone, kept, kl_coef=0.1)
    found = whole.select([0, 2, 3])
    for column in ("advantages", "weights", *(["returns"] if name == "gae" else [])):
        assert torch.allclose(found[column], expected[column], rtol=1e-12, atol=1e-15)
    assert means == pytest.approx(expected_means, rel=1e-12)


def test_groups_are_compared_without_a_critic() -> None:
    batch = _batch()
    algorithm = _algorithm(advantage="rloo")
    algorithm.kl.where = "loss"
    columns, means = with_advantages(batch, algorithm, kl_coef=0.0)
    first = [part[-1].item() for part in columns["advantages"].split(batch.lengths.tolist())]
    assert first == [1.0, -1.0, 0.0, 0.0]
    assert "returns" not in columns and "ref_kl" in means


def test_without_a_reference_there_is_no_kl() -> None:
    batch = _batch()
    tokens = {name: c for name, c in batch.tokens.items() if name != "ref_log_probs"}
    plain = Batch(batch.lengths, tokens, batch.rows)
    algorithm = _algorithm(advantage="grpo", scale_advantages=False)
    columns, means = with_advantages(plain, algorithm, kl_coef=0.1)
    last = [part[-1].item() for part in columns["advantages"].split(batch.lengths.tolist())]
    assert last == [0.5, -0.5, 0.0, 0.0]
    assert "ref_kl" not in means


def test_engine_and_trainer_that_differ_are_corrected() -> None:
    batch = _batch()
    algorithm = _algorithm(rollout_correction="token", rollout_correction_cap=1.5)
    columns, means = with_advantages(batch, algorithm, kl_coef=0.1)
    ratios = (batch["old_log_probs"] - batch["rollout_log_probs"]).exp().clamp(max=1.5)
    assert torch.allclose(columns["weights"][batch["mask"]], ratios[batch["mask"]])
    assert (columns["weights"][~batch["mask"]] == 1).all()
    assert means["correction"] == pytest.approx(float(ratios[batch["mask"]].mean()))


def test_sums_are_taken_over_all_ranks() -> None:
    """The whole batch on one rank, and its two groups on two."""
    algorithm = _algorithm()
    whole, means = with_advantages(_batch(), algorithm, kl_coef=0.1)
    parts = [_batch().select([0, 1]), _batch().select([2, 3])]
    # Every rank gives its sums in the same order: the first round collects, the second answers.
    rounds: list[list[torch.Tensor]] = [[], []]
    for _ in range(8):  # as many passes as there are sums, one after the other
        answered = []
        for rank, part in enumerate(parts):
            sent: list[torch.Tensor] = []

            def all_reduce(
                local: torch.Tensor, sent: list[torch.Tensor] = sent, rank: int = rank
            ) -> torch.Tensor:
                sent.append(local.clone())
                other = rounds[1 - rank]
                index = len(sent) - 1
                return local + other[index] if index < len(other) else local

            answered.append(with_advantages(part, algorithm, kl_coef=0.1, all_reduce=all_reduce))
            rounds[rank] = sent
    found = torch.cat([columns["advantages"] for columns, _ in answered])
    assert torch.allclose(found, whole["advantages"], rtol=1e-12)
    for name, value in means.items():
        assert math.isclose(answered[0][1][name], value, rel_tol=1e-12, abs_tol=1e-15)


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce++-baseline"])
@pytest.mark.parametrize(
    "parts", [[[0, 1, 2, 3]], [[0, 2], [1, 3]], [[3], [], [0, 1, 2]]], ids=["one", "two", "three"]
)
def test_groups_are_divided_over_ranks(name: str, parts: list[list[int]]) -> None:
    """With the KL in the reward, so that no one but the ranks knows what a row is worth."""
    algorithm = _algorithm(advantage=name)
    batch = _batch()
    whole, means = with_advantages(batch, algorithm, kl_coef=0.1)

    def of_rank(comm: Communicator) -> tuple[Batch, dict[str, float]]:
        return with_advantages(
            batch.select(parts[comm.rank]),
            algorithm,
            kl_coef=0.1,
            num_groups=2,
            all_reduce=sum_over(comm),
        )

    answered = run_threads(len(parts), of_rank, transport="loopback")
    joined = Batch.concat([columns for columns, _ in answered])
    order = [row for part in parts for row in part]
    found = joined.select([order.index(row) for row in range(len(batch))])
    assert whole["advantages"].unique().numel() > 2
    torch.testing.assert_close(found["advantages"], whole["advantages"], rtol=1e-12, atol=1e-14)
    for _, own in answered:
        assert own == pytest.approx(means, rel=1e-12, abs=1e-15)
