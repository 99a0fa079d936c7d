"""advantages: from scores, log-probs and values of a rank's rows to what the updates need."""

from __future__ import annotations

from typing import Any

import torch

from hybridengine.rlhf.algorithms import (
    AllReduce,
    Rollout,
    advantage,
    kl_estimator,
    rollout_correction,
    token_rewards,
)
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.by_place import estimator_of
from hybridengine.rlhf.config.schema import Algorithm
from hybridengine.rlhf.training.stepping import Sums

_SUMS = ("tokens", "sequences", "kl", "advantages", "returns", "weights")


def with_advantages(
    batch: Batch,
    algorithm: Algorithm,
    *,
    kl_coef: float,
    num_groups: int | None = None,
    all_reduce: AllReduce | None = None,
) -> tuple[Batch, dict[str, float]]:
    """Columns advantages, returns (with a critic) and weights (with a correction) for the rows of
    `batch`, and means over all ranks. Rows of the `num_groups` groups lie on any ranks; None: whole
    groups on each. Collective with `all_reduce`.

    `ref_kl` is the mean over trainable tokens, `sequence_kl` over rows of their sums, both of the
    estimator in the config; they are there when the batch has ref_log_probs.

    With `algorithm.truncated=mask` truncated rows get a new column mask without trainable tokens,
    and are no rows of their groups.
    """
    mask = _mask(batch, algorithm)
    kl = _kl(batch, mask, algorithm)
    in_reward = algorithm.kl.where == "reward" and kl is not None
    rewards = token_rewards(
        batch["scores"].to(batch["old_log_probs"].dtype),
        mask,
        turns=batch.padded("turn_rewards") if "turn_rewards" in batch else None,
        kl=kl if in_reward else None,
        kl_coef=kl_coef if in_reward else 0.0,
    )
    estimate = advantage.bind(algorithm.advantage, **_options(algorithm, all_reduce))
    result = estimate(
        Rollout(
            rewards,
            mask,
            groups=batch["group"],
            num_groups=num_groups,
            values=batch.padded("values") if "values" in batch else None,
            truncated=batch["truncated"] if algorithm.truncated == "bootstrap" else None,
            last_values=batch.rows.get("last_values"),
            baselines=batch.rows.get("baselines"),
        )
    )
    columns = {"advantages": batch.flat(result.advantages)}
    if algorithm.truncated == "mask":
        columns["mask"] = batch.flat(mask)
    if result.returns is not None:
        columns["returns"] = batch.flat(result.returns)
    if algorithm.rollout_correction not in (None, "none"):
        correct = rollout_correction.bind(
            algorithm.rollout_correction, cap=algorithm.rollout_correction_cap
        )
        old, sampled = batch.padded("old_log_probs"), batch.padded("rollout_log_probs")
        columns["weights"] = batch.flat(correct(old, sampled, mask))
    return Batch(batch.lengths, columns), _means(batch, columns, mask, kl, all_reduce)


def _mask(batch: Batch, algorithm: Algorithm) -> torch.Tensor:
    """bool [B, T]: the tokens that are learned from."""
    mask = batch.padded("mask", False)
    return mask & ~batch["truncated"][:, None] if algorithm.truncated == "mask" else mask


def _kl(batch: Batch, mask: torch.Tensor, algorithm: Algorithm) -> torch.Tensor | None:
    if "ref_log_probs" not in batch:
        return None
    old, reference = batch.padded("old_log_probs"), batch.padded("ref_log_probs")
    return kl_estimator.get(estimator_of(algorithm))(old, reference, mask)


def _options(algorithm: Algorithm, all_reduce: AllReduce | None) -> dict[str, Any]:
    """Those of the config that the chosen estimator takes."""
    known = {
        "gamma": algorithm.gamma,
        "lam": algorithm.lam,
        "normalize": algorithm.normalize_advantages,
        "scale": algorithm.scale_advantages,
        "all_reduce": all_reduce,
    }
    names = advantage.options(algorithm.advantage)
    return {name: value for name, value in known.items() if name in names}


def _means(
    batch: Batch,
    columns: dict[str, torch.Tensor],
    mask: torch.Tensor,
    kl: torch.Tensor | None,
    all_reduce: AllReduce | None,
) -> dict[str, float]:
    flat = batch.flat(mask)
    sums = Sums()
    sums.add(tokens=flat.sum(), sequences=mask.any(1).sum())
    if kl is not None:
        sums.add(kl=torch.where(mask, kl, 0).sum())
    known = {name: column for name, column in columns.items() if name in _SUMS}
    sums.add(**{name: torch.where(flat, column, 0).sum() for name, column in known.items()})
    total = sums.over_ranks(_SUMS, all_reduce)
    tokens, sequences = max(total["tokens"], 1), max(total["sequences"], 1)
    means = {"advantage": total["advantages"] / tokens}
    if kl is not None:
        means["ref_kl"] = total["kl"] / tokens
        means["sequence_kl"] = total["kl"] / sequences
    if "returns" in columns:
        means["return"] = total["returns"] / tokens
    if "weights" in columns:
        means["correction"] = total["weights"] / tokens
    return means
