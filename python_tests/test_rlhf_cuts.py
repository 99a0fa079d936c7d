"""Models whose layers ranks are to share: what cannot be cut is refused before ranks start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rlhf_small_run import SMALL

from hybridengine import UsageError
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.trainer import run
from hybridengine.rlhf.trainer.preflight import check_cuts

pytestmark = pytest.mark.python

OLMO2 = {
    "model_type": "olmo2",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


def _config(*overrides: str):
    return load_config([*SMALL, "trainer.ranks=2", *overrides])


def _set(facts: dict) -> str:
    return f"model.config={json.dumps(facts)}"


def test_a_rollout_that_cannot_be_cut_is_refused_before_ranks_start(tmp_path: Path, monkeypatch):
    def started(config):
        raise AssertionError("a cluster was started")

    monkeypatch.setattr(run.Cluster, "start", started)
    config = _config(_set(OLMO2), "rollout.tp_size=2", f"run.dir={tmp_path}")
    with pytest.raises(UsageError) as error:
        run.train(config)
    assert str(error.value) == (
        "rollout.tp_size=2: models of type 'olmo2' cannot be cut over 2 ranks that generate: "
        "layers with fewer heads have 'model.layers.0.self_attn.k_norm.weight' as [4], the layout "
        "tensor_parallel(2) as [8]. Use a tp_size of 1."
    )
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_do_not_divide_are_named_with_the_key():
    odd = {**OLMO2, "model_type": "qwen2", "num_attention_heads": 3, "num_key_value_heads": 3}
    with pytest.raises(UsageError, match=r"^rollout.tp_size=2: 3 attention heads do not divide"):
        check_cuts(_config(_set({**odd, "hidden_size": 12}), "rollout.tp_size=2"))


def test_a_reward_model_is_looked_at_too(tmp_path: Path):
    facts = {**OLMO2, "architectures": ["Olmo2ForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    with pytest.raises(UsageError, match=r"^reward_model.tp_size=2: models of type 'olmo2'"):
        check_cuts(_config(f"reward_model.path={tmp_path}", "reward_model.tp_size=2"))


def test_what_can_be_cut_or_need_not_be_passes():
    check_cuts(_config("rollout.tp_size=2"))
    check_cuts(_config(_set(OLMO2)))
