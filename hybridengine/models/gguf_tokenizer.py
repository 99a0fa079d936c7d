"""gguf_tokenizer: the tokenizer of a GGUF file as the files that transformers reads.

Only byte-level BPE that splits digits, which is SmolLM2's. The formats are those of the Hugging
Face libraries: tokenizer.json of tokenizers, tokenizer_config.json of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridengine._core import UsageError

_CONTROL = 3  # of llama.cpp's token types: a token that no text contains
_PIECES = "smollm"  # llama.cpp's name for: digits one by one, the rest as GPT-2 splits it


def write_tokenizer(field: Callable[[str], Any], directory: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json. `field` gives what a key of the GGUF file
    holds. Throws UsageError on another kind of tokenizer."""
    if field("tokenizer.ggml.model") != "gpt2" or field("tokenizer.ggml.pre") != _PIECES:
        raise UsageError(
            f"the tokenizer {field('tokenizer.ggml.pre')!r} of the GGUF file is not known. Use a "
            f"model with {_PIECES!r}."
        )
    tokens = field("tokenizer.ggml.tokens")
    kinds = field("tokenizer.ggml.token_type")
    special = [index for index, kind in enumerate(kinds) if kind == _CONTROL]
    content = _tokenizer(tokens, field("tokenizer.ggml.merges"), special)
    (directory / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[field("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[field("tokenizer.ggml.padding_token_id")],
        "unk_token": tokens[field("tokenizer.ggml.unknown_token_id")],
        "clean_up_tokenization_spaces": False,
        "model_max_length": field("llama.context_length"),
        "chat_template": field("tokenizer.chat_template"),
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _tokenizer(tokens: list[str], merges: list[str], special: list[int]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": tokens[index],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index in special
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }
