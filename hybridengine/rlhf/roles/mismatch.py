"""mismatch: how far the engine that generated and the trainer disagree about the same tokens.

Both have the same weights, in types and with kernels of their own. What is sampled follows the one,
what is learned the other; `algorithm.rollout_correction` weighs the difference. This only measures.
"""

from __future__ import annotations

import torch

from hybridengine.collective import collectives
from hybridengine.comm import Communicator
from hybridengine.rlhf.algorithms.ratios import MAX_LOG_RATIO
from hybridengine.rlhf.batch import Batch


def mismatch(batch: Batch, comm: Communicator) -> dict[str, float]:
    """Over the trainable tokens of all ranks, with x = log p_trainer - log p_rollout at each, in
    float64; nothing where the rollout's log-probs are not known. Collective.

    `mismatch_mean`, `mismatch_max`: of |x|. `mismatch_kl`: the mean of e^x - 1 - x, which estimates
    KL(rollout || trainer) (Schulman 2020). `mismatch_ess`: the effective sample size of the weights
    w = e^x, as a share: (sum w)^2 / (n sum w^2) (Kish 1965); 1 where both agree. In exponents x is
    clamped as ratios are.
    """
    if "rollout_log_probs" not in batch:
        return {}
    mask = batch["mask"]
    x = batch["old_log_probs"][mask].double() - batch["rollout_log_probs"][mask].double()
    bounded = x.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    weights = bounded.exp()
    terms = (torch.ones_like(x), x.abs(), bounded.expm1() - bounded, weights, weights.square())
    sums = torch.stack([term.sum() for term in terms])
    largest = x.abs().max()[None] if len(x) else torch.zeros(1, dtype=torch.float64)
    collectives.all_reduce(sums, "sum", comm=comm)
    collectives.all_reduce(largest, "max", comm=comm)
    num, distance, kl, total, squares = sums.tolist()
    return {
        "mismatch_mean": distance / max(num, 1),
        "mismatch_max": float(largest),
        "mismatch_kl": kl / max(num, 1),
        "mismatch_ess": total**2 / (num * squares) if num else 1.0,
    }
