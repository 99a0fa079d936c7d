"""vocabulary: that ids mean the same to every model that is fed with them.

The policy's ids go to a reward model, a critic and a reference as they are. One with another
vocabulary would read another text in them and score that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.config.by_place import correction_of
from hybridengine.rlhf.config.role_names import roles_of
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import EncodedResponse
from hybridengine.rlhf.roles.tokenizer import open_tokenizer, vocabulary_of
from hybridengine.rlhf.trainer.preflight import hf_config

_MEND = "It is fed with the policy's ids: give a model with the same tokens."


def checked_tokenizer(config: Config) -> Any:
    """The tokenizer of the config. Throws UsageError where it or the model's config does not load,
    or where it makes tokens that the model has no row for."""
    tokenizer = open_tokenizer(config)
    rows, highest = _num_rows(config.model.path, config.model.config, "model"), _highest(tokenizer)
    if rows is not None and highest >= rows:
        raise UsageError(
            f"the tokenizer has tokens up to id {highest}, the model rows for {rows}. Set "
            "model.tokenizer to the one that belongs to the model."
        )
    return tokenizer


def check_vocabularies(config: Config, tokenizer: Any) -> None:
    """Throws UsageError where a model with a path of its own has other tokens than the policy, or
    no rows for all of them."""
    wanted = roles_of(config)
    for role in ("critic", "reference", "reward_model"):
        path = getattr(config, role).path
        if role in wanted and path is not None:
            found = vocabulary_of(path, f"{role}.path")
            _check_rows(config, tokenizer, role, alone=found is None)
            if found is not None:
                _check_same(config, tokenizer, role, found)


def _check_rows(config: Config, tokenizer: Any, role: str, *, alone: bool) -> None:
    """Rows may be more than there are tokens: sizes are rounded up. A model `alone`, without a
    tokenizer, has nothing else to be known by, and must have as many as the policy."""
    path = getattr(config, role).path
    own = _num_rows(config.model.path, config.model.config, "model")
    rows, highest = _num_rows(path, {}, role), _highest(tokenizer)
    if own is None or rows is None or (rows > highest and not alone) or rows == own:
        return
    hint = ", and it has no tokenizer to compare" if alone else ""
    raise UsageError(
        f"{role}.path={path} has rows for {rows} tokens{hint}; the policy has {own}, and its "
        f"tokenizer ({_source(config)}) ids up to {highest}. {_MEND}"
    )


def _check_same(config: Config, tokenizer: Any, role: str, found: Mapping[str, int]) -> None:
    padding = {tokenizer.pad_token} - {tokenizer.eos_token}  # is in no text
    vocabulary = {token: n for token, n in tokenizer.get_vocab().items() if token not in padding}
    differ = [token for token, number in vocabulary.items() if found.get(token) != number]
    if not differ:
        return
    path, token = getattr(config, role).path, min(differ, key=vocabulary.__getitem__)
    theirs = f"id {found[token]}" if token in found else "missing"
    raise UsageError(
        f"{role}.path={path} has other tokens than the policy: {token!r} is id "
        f"{vocabulary[token]} to the tokenizer of {_source(config)} and {theirs} in {path}; "
        f"{len(differ)} of {len(vocabulary)} differ. {_MEND}"
    )


def check_tokens(config: Config, encoded: Sequence[EncodedResponse]) -> None:
    """Throws UsageError for the first response with ids that the model has no row for, or without
    the log-probs that a correction compares with."""
    rows = _num_rows(config.model.path, config.model.config, "model")
    corrected = correction_of(config) != "none"
    for each in encoded:
        tokens, name = each.sample.tokens, each.sample.name()
        if rows is not None and max(each.ids) >= rows:
            raise UsageError(
                f"{name}: there is a token of id {max(each.ids)}, and the model has rows for "
                f"{rows}. Train the model that sampled it, or leave the columns of ids out."
            )
        if corrected and (tokens is None or tokens.log_probs is None):
            raise UsageError(
                f"{name}: there are no log_probs, which algorithm.rollout_correction="
                f"{correction_of(config)} compares with. Set it to none, or give "
                "rollouts as trainer.save_rollouts writes them."
            )


def _num_rows(path: str | None, facts: dict[str, Any], section: str) -> int | None:
    """Of the embedding; None where the config does not say."""
    rows: int | None = getattr(hf_config(path, facts, section), "vocab_size", None)
    return rows


def _highest(tokenizer: Any) -> int:
    return max(tokenizer.get_vocab().values(), default=-1)


def _source(config: Config) -> str:
    """Where the policy's tokenizer is from."""
    model = config.model
    if model.tokenizer is not None:
        return f"model.tokenizer={model.tokenizer}"
    return "model.config" if model.path is None else f"model.path={model.path}"
