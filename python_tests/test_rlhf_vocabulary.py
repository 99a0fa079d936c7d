"""Models that are fed with the policy's ids have the policy's tokens, or the run does not start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rlhf_small_run import SMALL

from hybridengine import UsageError
from hybridengine.rlhf.config.loading import load_config
from hybridengine.rlhf.data import character_tokenizer
from hybridengine.rlhf.trainer.vocabulary import check_vocabularies, checked_tokenizer

pytestmark = pytest.mark.python

_ROLES = ["critic", "reference", "reward_model"]


def _directory(folder: Path, rows: int, tokenizer: Any = None) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": rows}))
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder


def _check(role: str, directory: Path, *overrides: str) -> None:
    config = load_config([*SMALL, f"{role}.path={directory}", "trainer.ranks=1", *overrides])
    check_vocabularies(config, checked_tokenizer(config))


def _swapped(tmp_path: Path) -> Any:
    """A tokenizer to which "a" is id 98 and "b" 97."""
    from transformers import AutoTokenizer

    character_tokenizer().save_pretrained(tmp_path / "plain")
    path = tmp_path / "plain" / "tokenizer.json"
    facts = json.loads(path.read_text())
    facts["model"]["vocab"] |= {"a": 98, "b": 97}
    path.write_text(json.dumps(facts))
    return AutoTokenizer.from_pretrained(tmp_path / "plain")


@pytest.mark.parametrize("role", _ROLES)
def test_the_same_tokens_pass(tmp_path: Path, role: str) -> None:
    _check(role, _directory(tmp_path / "same", 128, character_tokenizer()))
    _check(role, _directory(tmp_path / "rounded_up", 160, character_tokenizer()))
    _check(role, _directory(tmp_path / "more", 140, character_tokenizer(136)))
    _check(role, _directory(tmp_path / "alone", 128))


@pytest.mark.parametrize("role", _ROLES)
def test_other_tokens_are_refused_with_both_names(tmp_path: Path, role: str) -> None:
    directory = _directory(tmp_path / "other", 128, _swapped(tmp_path))
    with pytest.raises(UsageError) as caught:
        _check(role, directory)
    assert str(caught.value) == (
        f"{role}.path={directory} has other tokens than the policy: 'a' is id 97 to the tokenizer "
        f"of model.config and id 98 in {directory}; 2 of 127 differ. It is fed with the policy's "
        "ids: give a model with the same tokens."
    )


@pytest.mark.parametrize("role", _ROLES)
def test_sizes_that_cannot_be_right(tmp_path: Path, role: str) -> None:
    alone = _directory(tmp_path / "alone", 160)
    with pytest.raises(UsageError) as caught:
        _check(role, alone)
    assert str(caught.value) == (
        f"{role}.path={alone} has rows for 160 tokens, and it has no tokenizer to compare; the "
        "policy has 128, and its tokenizer (model.config) ids up to 127. It is fed with the "
        "policy's ids: give a model with the same tokens."
    )
    small = _directory(tmp_path / "small", 100, character_tokenizer())
    with pytest.raises(UsageError, match="has rows for 100 tokens; the policy has 128"):
        _check(role, small)


def test_a_token_that_the_other_lacks(tmp_path: Path) -> None:
    policy = character_tokenizer(130)
    policy.add_special_tokens({"pad_token": "<unused129>"})
    policy.save_pretrained(tmp_path / "policy")
    other = _directory(tmp_path / "other", 140, character_tokenizer(129))
    mine = [f"model.tokenizer={tmp_path}/policy"]
    model = SMALL[1].replace("vocab_size: 128", "vocab_size: 130")
    _check("reward_model", other, *mine, model)  # but for padding, all are there
    policy.add_special_tokens({"pad_token": "<pad>"})
    policy.save_pretrained(tmp_path / "policy")
    with pytest.raises(UsageError, match="'<unused129>' is id 129 to the"):
        _check("reward_model", other, *mine, model)


def test_a_role_that_is_not_there_is_not_looked_at(tmp_path: Path) -> None:
    _check("critic", tmp_path / "nowhere", "algorithm.advantage=grpo")


def test_a_tokenizer_that_does_not_load_is_named_by_its_key(tmp_path: Path) -> None:
    directory = _directory(tmp_path / "spoilt", 128)
    (directory / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match=f"^reward_model.path: {directory}: the token"):
        _check("reward_model", directory)
