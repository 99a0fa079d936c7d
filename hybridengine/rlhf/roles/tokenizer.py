"""tokenizer: the tokenizer of a config, the same wherever it is opened, and what ends a text."""

from __future__ import annotations

from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import character_tokenizer, load_tokenizer, load_vocabulary
from hybridengine.rlhf.model_files import generation_facts, model_directory


def open_tokenizer(config: Config) -> Any:
    """That of `model.tokenizer`, else of `model.path`; for a model made from `model.config` alone,
    single characters. Throws UsageError on one that does not load."""
    model = config.model
    source = model.tokenizer if model.tokenizer is not None else model.path
    if source is None:
        return character_tokenizer(int(model.config.get("vocab_size", 128)))
    return load_tokenizer(model_directory(source), model.chat_template)


def vocabulary_of(source: str, key: str) -> dict[str, int] | None:
    """The ids of all tokens of the tokenizer beside a model, None where there is none. Throws
    UsageError, which names the `key` of the config, for one that does not load."""
    try:
        return load_vocabulary(model_directory(source))
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from None


def end_token_ids(config: Config, tokenizer: Any) -> list[int]:
    """Every token that ends a response: the tokenizer's eos_token, and the eos_token_id of the
    checkpoint's generation_config.json, one or a list. Chat checkpoints end a turn with another
    token than a text."""
    listed = generation_facts(config.model).get("eos_token_id")
    others = [] if listed is None else listed if isinstance(listed, list) else [listed]
    return sorted({tokenizer.eos_token_id, *others})
