"""Which tokens end a response in a run: those of the tokenizer, the checkpoint and the config."""

import json

import pytest
import rlhf_local_roles
import torch
import yaml
from rlhf_small_run import MODEL, SMALL

from hybridengine.rlhf import load_config
from hybridengine.rlhf.batch import as_rows
from hybridengine.rlhf.data import character_tokenizer
from hybridengine.rlhf.roles.tokenizer import end_token_ids, open_tokenizer

pytestmark = pytest.mark.python

_EOS = 2  # of the tokenizer of characters


@pytest.fixture
def checkpoint(tmp_path):
    """The directory of a small model, with the tokenizer of characters."""
    from transformers import AutoConfig, AutoModelForCausalLM

    facts = yaml.safe_load(MODEL)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(facts.pop("model_type"), **facts))
    model.save_pretrained(tmp_path / "model")
    character_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def _config(checkpoint, *overrides):
    small = [item for item in SMALL if not item.startswith("model.config")]
    return load_config([*small, f"model.path={checkpoint}", *overrides])


@pytest.mark.parametrize(
    ("facts", "ends"),
    [
        ({"eos_token_id": [_EOS, 65, 66]}, [_EOS, 65, 66]),
        ({"eos_token_id": 65}, [_EOS, 65]),
        ({"eos_token_id": None}, [_EOS]),
        ({}, [_EOS]),
        (None, [_EOS]),
    ],
)
def test_the_end_tokens_of_checkpoint_and_tokenizer_count(checkpoint, facts, ends):
    path = checkpoint / "generation_config.json"
    path.unlink()
    if facts is not None:
        path.write_text(json.dumps(facts))
    config = _config(checkpoint)
    assert end_token_ids(config, open_tokenizer(config)) == ends


def test_a_model_without_a_checkpoint_has_those_of_its_tokenizer():
    config = load_config(SMALL)
    assert end_token_ids(config, open_tokenizer(config)) == [_EOS]


def test_responses_of_a_run_end_with_any_of_them(checkpoint, tmp_path):
    listed = list(range(3, 64))
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": listed}))
    config = _config(checkpoint, "rollout.stop_token_ids=[100, 101, 102, 103]")
    samples = ("prompt", "ground_truth", "data_source", "extra", "where")
    prompts = (
        as_rows([[70, 71]] * 64, [[]] * 64)
        .with_rows(sample_id=torch.arange(64), group=torch.arange(64))
        .with_objects(**{name: [""] * 64 for name in samples})
    )
    with rlhf_local_roles.one_rank(tmp_path) as context:
        roles = rlhf_local_roles.local_roles(context, config)
        roles.rollout.sync(0)
        (found,) = roles.rollout.generate([prompts])
        rows = found.ref.value
    ends = {_EOS, *listed, 100, 101, 102, 103}
    last = rows["ids"][rows.last_tokens()].tolist()
    assert [token in ends for token in last] == (~rows["truncated"]).tolist()
    assert {token > 99 for token in last if token in ends} == {False, True}
