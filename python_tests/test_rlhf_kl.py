"""KL, its controllers, rollout correction, log-probs and entropy."""

import math

import pytest
import torch
from ranks import run_threads
from rlhf_reference import random_batch

from hybridengine import Communicator, UsageError
from hybridengine.rlhf.algorithms import (
    entropy,
    kl_controller,
    kl_estimator,
    nucleus,
    over_kl_limit,
    policy_loss,
    rollout_correction,
    sum_over,
    token_log_probs,
    with_unbiased_gradient,
)

pytestmark = pytest.mark.python

_RTOL = {torch.float64: 1e-6, torch.float32: 1e-4}
_ONE = torch.ones(1, 1, dtype=torch.bool)


@pytest.mark.parametrize("dtype", _RTOL)
def test_kl_estimates_against_loops(dtype: torch.dtype) -> None:
    batch = random_batch(21)
    given = batch.cast(dtype).tensors
    pairs = zip(batch.rows_of("log_probs"), batch.rows_of("ref_log_probs"), strict=True)
    x = [r - p for policy, reference in pairs for p, r in zip(policy, reference, strict=True)]
    expected = {
        "k1": [-each for each in x],
        "k2": [each**2 / 2 for each in x],
        "k3": [math.exp(each) - 1 - each for each in x],
    }
    assert set(expected) == set(kl_estimator.names())
    for name, values in expected.items():
        kl = kl_estimator.get(name)(given["log_probs"], given["ref_log_probs"], batch.mask)
        assert kl[batch.mask].tolist() == pytest.approx(values, rel=_RTOL[dtype], abs=1e-7)
        assert (kl[~batch.mask] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked_ratio", [500.0, math.nan, math.inf])
def test_b31_k3_is_bounded_before_the_exponential(dtype: torch.dtype, masked_ratio: float) -> None:
    reference = torch.tensor([[0.5, -0.5, 0, 200, masked_ratio]], dtype=dtype)
    mask = torch.tensor([[True, True, True, True, False]])
    policy = torch.zeros(1, 5, dtype=dtype, requires_grad=True)
    kl = kl_estimator.bind("k3", cap=10.0)(policy, reference, mask)
    assert kl.tolist()[0] == pytest.approx([0.1487213, 0.1065307, 0, 10, 0], rel=1e-6)
    kl.sum().backward()
    assert policy.grad is not None
    slopes = [1 - math.exp(0.5), 1 - math.exp(-0.5), 0, 0, 0]
    rel = 1e-6 if dtype == torch.float32 else 1e-2
    assert policy.grad.tolist()[0] == pytest.approx(slopes, rel=rel)


@pytest.mark.parametrize("name", ["k2", "k3"])
def test_b31_kl_is_never_negative_and_always_finite(name: str) -> None:
    small = torch.logspace(-12, 3, 3000)
    reference = torch.cat([small, -small, torch.tensor([math.inf, -math.inf])])[None]
    policy = torch.zeros_like(reference, requires_grad=True)
    kl = kl_estimator.get(name)(policy, reference, torch.ones_like(reference, dtype=torch.bool))
    kl.sum().backward()
    assert (kl >= 0).all() and kl.isfinite().all()
    assert policy.grad is not None and policy.grad.isfinite().all()


@pytest.mark.parametrize("name", kl_controller.names())
@pytest.mark.parametrize("kl", [math.nan, math.inf])
def test_b31_the_controllers_refuse_nan_and_keep_their_coefficient(name: str, kl: float) -> None:
    controller = kl_controller.bind(name, coef=0.12)()
    with pytest.raises(UsageError, match=f"given kl={kl}: its coefficient stays"):
        controller.updated(kl, 8)
    assert controller.coef == 0.12


def test_the_adaptive_controller_steers_towards_its_target() -> None:
    controller = kl_controller.bind("adaptive", coef=0.1, target=2.0, horizon=100)()
    assert controller.updated(2.2, 10).coef == pytest.approx(0.1 * (1 + 0.1 * 0.1))
    assert controller.updated(9.0, 10).coef == pytest.approx(0.1 * (1 + 0.2 * 0.1))
    assert controller.updated(0.0, 10).updated(2.0, 10).coef == pytest.approx(0.1 * 0.98)
    assert controller.updated(0.0, 10**6).coef == pytest.approx(0.08)  # never negative
    assert controller.coef == 0.1
    fixed = kl_controller.bind("fixed", coef=0.3)()
    assert fixed.updated(100.0, 8).coef == 0.3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adaptive", {"target": 0.0}, "target=0.0 is out of range: it must be above 0"),
        ("adaptive", {"target": -1.0}, "target=-1.0"),
        ("adaptive", {"target": math.nan}, "target=nan"),
        ("adaptive", {"horizon": 0}, "horizon=0"),
        ("adaptive", {"horizon": -5}, "horizon=-5"),
        ("adaptive", {"coef": 0.0}, "coef=0.0"),
        ("fixed", {"coef": -0.1}, "coef=-0.1 is out of range: it must be at least 0"),
    ],
)
def test_controllers_refuse_what_cannot_steer(
    name: str, options: dict[str, float], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        kl_controller.bind(name, **options)()


def _expected_gradient(logits: torch.Tensor, name: str, sampled_from: torch.Tensor) -> torch.Tensor:
    """d/d logits of an estimate as a loss, averaged exactly over the tokens of a vocabulary."""
    leaf = logits.clone().requires_grad_()
    log_probs = leaf.log_softmax(-1)[None]
    reference = torch.linspace(-1, 1, len(logits), dtype=torch.float64).log_softmax(-1)[None]
    mask = torch.ones_like(log_probs, dtype=torch.bool)
    if name == "exact":
        losses = log_probs - reference
        weights = log_probs.exp()
    elif name == "unbiased":
        k3 = kl_estimator.get("k3")(log_probs, reference, mask)
        old = sampled_from.log_softmax(-1)[None]
        losses = with_unbiased_gradient(k3, log_probs, reference, mask, old_log_probs=old)
        torch.testing.assert_close(losses, k3)
        weights = old.exp()
    else:
        losses = kl_estimator.get(name)(log_probs, reference, mask)
        weights = sampled_from.softmax(-1)[None]
    (weights * losses).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def test_the_expected_gradient_is_that_of_the_kl_where_it_should_be() -> None:
    logits = torch.tensor([0.3, -0.8, 1.1, 0.0], dtype=torch.float64)
    other = torch.tensor([0.0, 0.5, 0.2, -0.4], dtype=torch.float64)
    exact = _expected_gradient(logits, "exact", logits)
    for name, sampled_from in (("k2", logits), ("unbiased", logits), ("unbiased", other)):
        torch.testing.assert_close(_expected_gradient(logits, name, sampled_from), exact)
    nothing = torch.zeros_like(exact)
    torch.testing.assert_close(_expected_gradient(logits, "k1", logits), nothing)
    assert (_expected_gradient(logits, "k3", logits) - exact).abs().max() > 0.01


@pytest.mark.parametrize(("limit", "decision"), [(0.3, True), (0.35, False), (0.4, False)])
def test_b15_every_rank_decides_from_the_reduced_kl(limit: float, decision: bool) -> None:
    kl = [torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([[0.2]], dtype=torch.float64)]

    def of_rank(comm: Communicator) -> bool:
        return over_kl_limit(kl[comm.rank], _ONE, limit=limit, all_reduce=sum_over(comm))

    assert run_threads(2, of_rank, transport="loopback") == [decision] * 2
    assert over_kl_limit(torch.tensor([[math.nan]]), _ONE, limit=limit)


@pytest.mark.parametrize("dtype", _RTOL)
def test_rollout_correction_against_loops(dtype: torch.dtype) -> None:
    batch = random_batch(24)
    given = batch.cast(dtype).tensors
    arguments = given["log_probs"], given["old_log_probs"], batch.mask
    pairs = zip(batch.rows_of("log_probs"), batch.rows_of("old_log_probs"), strict=True)
    logs = [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs]
    token = [min(math.exp(log), 1.2) for row in logs for log in row]
    sequence = [min(math.exp(sum(row)), 1.2) for row in logs for _ in row]
    assert min(token) < 1.2 == max(token) and min(sequence) < 1.2 == max(sequence)
    for name, expected in (("token", token), ("sequence", sequence)):
        weights = rollout_correction.bind(name, cap=1.2)(*arguments)
        assert weights[batch.mask].tolist() == pytest.approx(expected, rel=_RTOL[dtype])
        assert (weights[~batch.mask] == 1).all()
        equal = rollout_correction.get(name)(arguments[0], arguments[0], batch.mask)
        assert (equal == 1).all()


def test_b33_log_probs_are_those_after_temperature() -> None:
    logits = torch.tensor([[[2.0, 0.0]]])
    token = torch.zeros(1, 1, dtype=torch.int64)
    rollout = token_log_probs(logits, token, temperature=0.5)
    trainer = token_log_probs(logits.clone(), token, temperature=0.5)
    assert float(rollout) == pytest.approx(-0.0181499, abs=1e-7)
    terms = policy_loss.get("clip")(trainer, rollout, torch.ones(1, 1), _ONE)
    assert float(terms.ratio) == 1
    raw = token_log_probs(logits, token)
    faulty = policy_loss.get("clip")(trainer, raw, torch.ones(1, 1), _ONE)
    assert float(faulty.ratio) == pytest.approx(1.1149, abs=1e-4)
    with pytest.raises(UsageError, match=r"temperature=0\.0 is out of range"):
        token_log_probs(logits, token, temperature=0.0)


def test_b33_top_p_renormalises_over_the_same_support_on_both_sides() -> None:
    probs = torch.tensor([0.6, 0.3, 0.06, 0.04], dtype=torch.float64)
    logits, token = probs.log()[None, None], torch.tensor([[1]])
    support = nucleus(logits, 0.85)
    assert support.tolist() == [[[True, True, False, False]]]
    cut = token_log_probs(logits, token, support=support)
    assert float(cut - token_log_probs(logits, token)) == pytest.approx(0.1053605, abs=1e-7)
    assert token_log_probs(logits, torch.tensor([[2]]), support=support).item() == -math.inf
    assert nucleus(logits, 1.0).all()
    assert nucleus(logits, 1e-9).sum() == 1
    with pytest.raises(UsageError, match="top_p=0"):
        nucleus(logits, 0.0)


@pytest.mark.parametrize("dtype", _RTOL)
def test_entropy_against_loops_and_nan_behind_the_mask(dtype: torch.dtype) -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[0, 0, 2] = -math.inf
    expected = []
    for row in logits.reshape(-1, 5).tolist():
        weights = [math.exp(logit / 0.7) for logit in row]
        probs = [weight / sum(weights) for weight in weights]
        expected.append(-sum(p * math.log(p) for p in probs if p > 0))
    logits = logits.to(dtype)
    got = entropy(logits, temperature=0.7)
    assert got.flatten().tolist() == pytest.approx(expected, rel=_RTOL[dtype])
    mask = torch.tensor([[True, True, False], [True, False, True]])
    faulty = torch.where(mask[..., None], logits, torch.nan).requires_grad_()
    tokens = torch.where(mask, 1, -100)
    total = entropy(faulty, temperature=0.7, mask=mask)
    logs = token_log_probs(faulty, tokens, temperature=0.7, mask=mask)
    assert torch.equal(total, torch.where(mask, got, 0))
    (total + logs).sum().backward()
    assert faulty.grad is not None and faulty.grad.isfinite().all()
    assert (faulty.grad[~mask] == 0).all() and (faulty.grad[mask] != 0).any()


def test_shapes_of_logits_are_checked() -> None:
    logits = torch.zeros(2, 3, 4)
    with pytest.raises(UsageError, match=r"tokens is \[2, 4\] for logits"):
        token_log_probs(logits, torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(UsageError, match=r"mask is \[3\] for logits"):
        entropy(logits, mask=torch.ones(3, dtype=torch.bool))
