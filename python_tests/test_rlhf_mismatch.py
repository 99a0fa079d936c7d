"""What rollout and trainer disagree about, over ranks, against numpy."""

import numpy as np
import pytest
import torch
from ranks import run_threads

from hybridengine import Communicator
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.roles.mismatch import mismatch

pytestmark = pytest.mark.python


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([3, 5, 1, 4, 6])
    total = int(lengths.sum())
    mask = torch.rand(total, generator=generator) > 0.4
    old = torch.randn(total, generator=generator, dtype=torch.float64)
    sampled = old - 0.2 * torch.randn(total, generator=generator, dtype=torch.float64)
    tokens = {"mask": mask, "old_log_probs": old, "rollout_log_probs": sampled}
    hidden = {name: torch.where(mask, tokens[name], torch.nan) for name in list(tokens)[1:]}
    return Batch(lengths, {"mask": mask, **hidden})


@pytest.mark.parametrize("world", [1, 2, 3])
def test_any_number_of_ranks_measures_the_same(world: int) -> None:
    batch = _batch()
    mask = batch["mask"].numpy()
    x = (batch["old_log_probs"] - batch["rollout_log_probs"]).numpy()[mask]
    weights = np.exp(x)
    expected = {
        "mismatch_mean": np.abs(x).mean(),
        "mismatch_max": np.abs(x).max(),
        "mismatch_kl": (weights - 1 - x).mean(),
        "mismatch_ess": weights.sum() ** 2 / (len(x) * (weights**2).sum()),
    }
    assert 0.5 < expected["mismatch_ess"] < 0.999

    def of_rank(comm: Communicator) -> dict[str, float]:
        rows = [] if world == 3 and comm.rank == 2 else range(comm.rank, 5, min(world, 2))
        return mismatch(batch.select(list(rows)), comm)

    for found in run_threads(world, of_rank, transport="loopback"):
        assert found == pytest.approx(expected, rel=1e-9)


def test_engines_that_agree_have_none_and_no_tokens_are_no_fault() -> None:
    batch = _batch()
    equal = batch.with_tokens(rollout_log_probs=batch["old_log_probs"])
    empty = batch.with_tokens(mask=torch.zeros_like(batch["mask"]))
    nothing = {"mismatch_mean": 0, "mismatch_max": 0, "mismatch_kl": 0, "mismatch_ess": 1}

    def both(comm: Communicator) -> list[dict[str, float]]:
        return [mismatch(each, comm) for each in (equal, empty, batch.keep("mask"))]

    (found,) = run_threads(1, both, transport="loopback")
    assert found == [nothing, nothing, {}]
