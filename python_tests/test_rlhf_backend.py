"""Roles know a backend by its protocol alone: with another one a run has the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from rlhf_plain_backend import Plain
from test_rlhf_digests import PPO, metrics_of

from hybridengine.rlhf.roles.backends import BACKENDS

pytestmark = pytest.mark.python

# Of how and how fast a backend works, and not of what it comes to.
_OF_THE_WAY = (
    "micro_batches",
    "lr",
    "updates",
    "skipped",
    "stopped",
    "tokens_per_second",
    "flops_share",
)


def test_a_run_on_another_backend_has_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps of PPO: warm-up, actor, critic, reference, and the weights that generate."""
    (tmp_path / "fsdp2").mkdir()
    (tmp_path / "plain").mkdir()
    expected = metrics_of(tmp_path / "fsdp2", PPO)
    monkeypatch.setitem(BACKENDS, "fsdp2", Plain)
    found = metrics_of(tmp_path / "plain", PPO)
    assert "actor/micro_batches" not in found[0]  # Plain has none
    for ours, theirs in zip(found, expected, strict=True):
        compared = [
            name
            for name in theirs
            if name.partition("/")[0] not in ("time", "reshard")
            and name.rpartition("/")[2] not in _OF_THE_WAY
        ]
        assert {"actor/grad_norm", "critic/loss", "actor/ref_kl"} <= set(compared)
        for name in compared:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-6, abs=1e-9), name
