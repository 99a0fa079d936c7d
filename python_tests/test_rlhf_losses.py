"""Losses: against plain float64 loops, and the same for every cut of the batch."""

import pytest
import torch
from ranks import run_threads
from rlhf_reference import (
    POLICY_LOSSES,
    Batch,
    aggregated,
    policy_row,
    policy_slopes,
    random_batch,
)

from hybridengine import Communicator, UsageError
from hybridengine.rlhf.algorithms import (
    Counts,
    aggregation,
    global_counts,
    kl_estimator,
    policy_loss,
    sum_over,
    value_loss,
    with_unbiased_gradient,
)

pytestmark = pytest.mark.python

_RTOL = {torch.float64: 1e-6, torch.float32: 1e-4}
_LOSSES = [f"policy:{name}" for name in POLICY_LOSSES]
_LOSSES += [f"value:{name}" for name in value_loss.names()]
_LOSSES += [f"kl:{name}" for name in kl_estimator.names()] + ["kl:unbiased"]


def _losses(kind: str, batch: Batch, leaf: torch.Tensor) -> torch.Tensor:
    """[B, T] losses of one kind; `leaf` stands for what is trained."""
    family, name = kind.split(":")
    given = batch.tensors
    if family == "policy":
        old, advantages = given["old_log_probs"], given["advantages"]
        chosen, options = POLICY_LOSSES[name]
        return policy_loss.get(chosen)(leaf, old, advantages, batch.mask, **options).losses
    if family == "value":
        old, returns = given["old_values"], given["returns"]
        return value_loss.get(name)(leaf, old, returns, batch.mask).losses
    if name == "unbiased":
        estimate = kl_estimator.get("k3")(leaf, given["ref_log_probs"], batch.mask)
        old = given["old_log_probs"]
        reference = given["ref_log_probs"]
        return with_unbiased_gradient(estimate, leaf, reference, batch.mask, old_log_probs=old)
    return kl_estimator.get(name)(leaf, given["ref_log_probs"], batch.mask)


def _loss_and_gradient(
    kind: str, mode: str, batch: Batch, counts: Counts
) -> tuple[float, torch.Tensor]:
    """The loss of `batch` as a part of an update of `counts`, and d loss / d what is trained."""
    leaf = batch.tensors["values" if kind.startswith("value") else "log_probs"].clone()
    leaf.requires_grad_()
    loss = aggregation.get(mode)(_losses(kind, batch, leaf), batch.mask, counts)
    loss.backward()
    assert leaf.grad is not None
    return float(loss.detach()), leaf.grad.double()


@pytest.mark.parametrize("dtype", _RTOL)
@pytest.mark.parametrize("mode", aggregation.names())
@pytest.mark.parametrize("kind", _LOSSES)
def test_any_cut_of_the_batch_gives_the_same_loss_and_gradient(
    kind: str, mode: str, dtype: torch.dtype
) -> None:
    whole = random_batch(1).cast(dtype)
    counts = global_counts(whole.mask)
    expected, gradient = _loss_and_gradient(kind, mode, random_batch(1), counts)
    assert torch.isfinite(gradient).all() and (gradient[whole.mask] != 0).any()
    assert (gradient[~whole.mask] == 0).all()
    for cut in ([[0], [1], [2], [3], [4], [5]], [[5, 0], [3, 1, 4, 2]], [[1], [], [4, 5, 0, 2, 3]]):
        loss, joined = 0.0, torch.zeros_like(gradient)
        for rows in cut:  # micro-batches and ranks alike: losses and gradients add up
            part = whole.take(rows)
            partial, joined[rows] = _loss_and_gradient(kind, mode, part, counts)
            loss += partial
        assert loss == pytest.approx(expected, rel=_RTOL[dtype])
        torch.testing.assert_close(joined, gradient, rtol=_RTOL[dtype], atol=_RTOL[dtype] / 100)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("mode", aggregation.names())
def test_any_number_of_ranks_gives_the_same_loss_and_gradient(mode: str, num_ranks: int) -> None:
    whole = random_batch(7, num_rows=7)
    expected, gradient = _loss_and_gradient("policy:clip", mode, whole, global_counts(whole.mask))

    def of_rank(comm: Communicator, size: int) -> tuple[float, torch.Tensor]:
        rows = list(range(7))[comm.rank :: num_ranks]
        cut = [rows[start : start + size] for start in range(0, len(rows), size)]
        parts = [whole.take(each) for each in cut]
        counts = global_counts([part.mask for part in parts], all_reduce=sum_over(comm))
        loss, joined = 0.0, torch.zeros_like(gradient)
        for each, part in zip(cut, parts, strict=True):
            partial, joined[each] = _loss_and_gradient("policy:clip", mode, part, counts)
            loss += partial
        return loss, joined

    for size in (1, 2, 7):
        results = run_threads(num_ranks, of_rank, size, transport="loopback")
        assert sum(loss for loss, _ in results) == pytest.approx(expected, rel=1e-6)
        joined = torch.stack([each for _, each in results]).sum(0)
        torch.testing.assert_close(joined, gradient, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("dtype", _RTOL)
@pytest.mark.parametrize("mode", aggregation.names())
@pytest.mark.parametrize("kind", _LOSSES)
def test_padding_and_inserted_masked_tokens_change_nothing(
    kind: str, mode: str, dtype: torch.dtype
) -> None:
    whole = random_batch(2).cast(dtype)
    wide = whole.with_inserted([0, 0, 4, 7], width=20)
    counts = global_counts(wide.mask)
    assert counts == global_counts(whole.mask)
    expected, gradient = _loss_and_gradient(kind, mode, random_batch(2), counts)
    loss, spread = _loss_and_gradient(kind, mode, wide, counts)
    assert loss == pytest.approx(expected, rel=_RTOL[dtype])
    tolerances = {"rtol": _RTOL[dtype], "atol": _RTOL[dtype] / 100}
    torch.testing.assert_close(spread[wide.mask], gradient[whole.mask], **tolerances)
    assert (spread[~wide.mask] == 0).all()


@pytest.mark.parametrize("dtype", _RTOL)
@pytest.mark.parametrize("mode", aggregation.names())
@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_policy_losses_against_loops(name: str, mode: str, dtype: torch.dtype) -> None:
    batch = random_batch(3)
    counts = global_counts(batch.mask)
    names = ("log_probs", "old_log_probs", "advantages")
    rows = list(zip(*(batch.rows_of(each) for each in names), strict=True))
    expected = aggregated(mode, [policy_row(name, *row) for row in rows])
    loss, gradient = _loss_and_gradient(f"policy:{name}", mode, batch.cast(dtype), counts)
    assert loss == pytest.approx(expected, rel=_RTOL[dtype])
    weights = {
        "token-mean": lambda row: 1 / counts.tokens,
        "seq-mean-token-sum": lambda row: 1 / counts.sequences,
        "seq-mean-token-mean": lambda row: 1 / len(row[0]) / counts.sequences,
    }
    slopes = [slope * weights[mode](row) for row in rows for slope in policy_slopes(name, *row)]
    assert gradient[batch.mask].tolist() == pytest.approx(slopes, rel=_RTOL[dtype], abs=1e-9)


@pytest.mark.parametrize("dtype", _RTOL)
def test_value_losses_against_loops(dtype: torch.dtype) -> None:
    batch = random_batch(4)
    given = batch.cast(dtype).tensors
    arguments = given["values"], given["old_values"], given["returns"], batch.mask
    names = ("values", "old_values", "returns")
    triples = [[x for row in batch.rows_of(each) for x in row] for each in names]
    free, bounded = [], []
    for value, old, target in zip(*triples, strict=True):
        near = min(max(value, old - 0.2), old + 0.2)
        free.append((value - target) ** 2 / 2)
        bounded.append(max((value - target) ** 2, (near - target) ** 2) / 2)
    for name, expected in (("mse", free), ("clip", bounded)):
        losses = value_loss.get(name)(*arguments).losses[batch.mask]
        assert losses.tolist() == pytest.approx(expected, rel=_RTOL[dtype], abs=1e-6)
    assert value_loss.get("clip")(*arguments).clipped[batch.mask].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", policy_loss.names())
def test_the_ratio_is_exactly_1_with_equal_log_probs(name: str, dtype: torch.dtype) -> None:
    batch = random_batch(5).cast(dtype)
    old, advantages = batch.tensors["old_log_probs"], batch.tensors["advantages"]
    terms = policy_loss.get(name)(old.clone(), old, advantages, batch.mask)
    assert (terms.ratio == 1).all()
    assert not terms.clipped.any()
    factor = old.float() if name == "cispo" else 1
    torch.testing.assert_close(
        terms.losses[batch.mask],
        (-advantages * factor)[batch.mask].to(terms.losses.dtype),
        rtol=1e-6,
        atol=0,
    )


def test_gspo_has_the_gradient_of_the_form_with_one_ratio_a_sequence() -> None:
    batch = random_batch(9)
    mask, old = batch.mask, batch.tensors["old_log_probs"]
    one_a_row = torch.linspace(-1, 1, len(mask), dtype=torch.float64)[:, None].expand(mask.shape)
    batch.tensors["advantages"] = one_a_row
    counts = global_counts(mask)
    loss, gradient = _loss_and_gradient("policy:gspo", "seq-mean-token-mean", batch, counts)
    leaf = batch.tensors["log_probs"].clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for row, kept in enumerate(mask):
        if kept.any():
            ratio = (leaf[row][kept] - old[row][kept]).mean().exp()
            advantage = one_a_row[row, 0]
            bounded = -advantage * ratio.clamp(1 - 3e-4, 1 + 4e-4)
            total = total + torch.maximum(-advantage * ratio, bounded) / counts.sequences
    total.backward()
    assert loss == pytest.approx(float(total.detach()), rel=1e-12)
    assert leaf.grad is not None and (leaf.grad != 0).any()
    torch.testing.assert_close(gradient, leaf.grad)


@pytest.mark.parametrize("kind", _LOSSES)
def test_only_what_is_trained_has_a_gradient(kind: str) -> None:
    batch = random_batch(6)
    trained = "values" if kind.startswith("value") else "log_probs"
    for tensor in batch.tensors.values():
        tensor.requires_grad_()
    _losses(kind, batch, batch.tensors[trained])[batch.mask].sum().backward()
    touched = [name for name, tensor in batch.tensors.items() if tensor.grad is not None]
    assert touched == [trained]


def test_every_policy_loss_has_a_case() -> None:
    assert {name for name, _ in POLICY_LOSSES.values()} == set(policy_loss.names())


def test_dual_clip_bounds_the_loss_of_an_unlikely_bad_token() -> None:
    mask = torch.ones(1, 3, dtype=torch.bool)
    new = torch.tensor([[2.0, 2.0, 1000.0]], requires_grad=True)
    advantages = torch.tensor([[-1.0, 1.0, -2.0]])
    bounded = policy_loss.bind("clip", clip_ratio_c=3.0)
    terms = bounded(new, torch.zeros(1, 3), advantages, mask)
    assert terms.losses.tolist()[0] == pytest.approx([3.0, -1.2, 6.0])
    assert terms.clipped.tolist() == [[True, True, True]]
    terms.losses.sum().backward()
    assert new.grad is not None and new.grad.tolist() == [[0.0, 0.0, 0.0]]


def test_b29_the_mean_is_over_the_tokens_of_all_micro_batches_and_ranks() -> None:
    def update(parts: list[list[float]]) -> float:
        masks = [torch.ones(1, len(part), dtype=torch.bool) for part in parts]
        counts = global_counts(masks)
        mean = aggregation.get("token-mean")
        losses = [torch.tensor([part], dtype=torch.float64) for part in parts]
        return float(sum(mean(x, m, counts) for x, m in zip(losses, masks, strict=True)))

    assert update([[2.0], [1.0, 1.0, 1.0]]) == pytest.approx(1.25, rel=1e-6)
    parts = [[0.4] * 10, [0.2] * 30, [0.1] * 60, []]
    assert update(parts) == pytest.approx(0.16, rel=1e-6)


def test_rows_of_padding_do_not_count() -> None:
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert global_counts(mask) == Counts(tokens=2, sequences=1)
    assert global_counts([mask, mask[:1]]) == Counts(tokens=4, sequences=2)
    assert global_counts([]) == Counts(tokens=0, sequences=0)


@pytest.mark.parametrize("mode", aggregation.names())
@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (3, 0), (2, 4)])
def test_a_batch_without_trainable_tokens_has_loss_and_gradient_0(
    mode: str, shape: tuple[int, int]
) -> None:
    losses = torch.full(shape, torch.nan, requires_grad=True)
    mask = torch.zeros(shape, dtype=torch.bool)
    loss = aggregation.get(mode)(losses, mask, Counts(0, 0))
    loss.backward()
    assert float(loss.detach()) == 0 and losses.grad is not None and (losses.grad == 0).all()


def test_shapes_and_masks_are_checked() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    good, wide = torch.zeros(2, 3), torch.zeros(2, 4)
    with pytest.raises(UsageError, match=r"advantages is \[2, 4\], mask is \[2, 3\]"):
        policy_loss.get("clip")(good, good, wide, mask)
    with pytest.raises(UsageError, match=r"mask must be bool .* torch.float32"):
        policy_loss.get("gspo")(good, good, good, good)
    with pytest.raises(UsageError, match=r"returns is \[2, 4\]"):
        value_loss.get("clip")(good, good, wide, mask)
    with pytest.raises(UsageError, match=r"clip_ratio_low=-0\.1 is out of range"):
        policy_loss.get("clip")(good, good, good, mask, clip_ratio=-0.1)
    with pytest.raises(UsageError, match="2 tokens in 3 sequences"):
        Counts(tokens=2, sequences=3)
