"""characters: a tokenizer of single ASCII characters, for small models that need no vocabulary."""

from __future__ import annotations

from typing import Any

from hybridengine._core import UsageError

# They take the ids of control characters that no text has.
_SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
_ASCII = 128


def character_tokenizer(vocab_size: int = _ASCII) -> Any:
    """A transformers PreTrainedTokenizerFast in which a character's id is its ASCII code.

    decode(encode(x)) == x for printable ASCII, tabs and line ends without the name of a special
    token: "<pad>" is that token. Every byte of another character is <unk>. Ids 0, 1 and 2 are pad,
    bos and eos; encoding puts none of them before or behind a text. Ids above 127 are never made.

    Throws UsageError for fewer than 128 entries.
    """
    if vocab_size < _ASCII:
        raise UsageError(f"a vocabulary of {vocab_size} has no room for ASCII. Give 128 or more.")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    bytes_as_text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ids = {
        bytes_as_text.pre_tokenize_str(chr(code))[0][0]: code
        for code in range(len(_SPECIAL), _ASCII)
    }
    ids |= {token: code for code, token in enumerate(_SPECIAL)}
    ids |= {f"<unused{code}>": code for code in range(_ASCII, vocab_size)}
    pad, bos, eos, unknown = _SPECIAL
    # Byte-level BPE without merges, and not a list of words: transformers reads the tokenizer of a
    # Qwen2 checkpoint as byte-level BPE whatever kind it says it is.
    tokenizer = Tokenizer(models.BPE(ids, [], unk_token=unknown))
    tokenizer.pre_tokenizer = bytes_as_text
    tokenizer.decoder = decoders.ByteLevel()
    wrap: Any = PreTrainedTokenizerFast
    return wrap(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unknown,
        clean_up_tokenization_spaces=False,
    )
