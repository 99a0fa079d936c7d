"""characters: a tokenizer of single ASCII characters, for small models that need no vocabulary."""

from __future__ import annotations

from typing import Any

from hybridengine._core import UsageError

# They take the ids of control characters that no text has.
_SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
_ASCII = 128


def character_tokenizer(vocab_size: int = _ASCII) -> Any:
    """A transformers PreTrainedTokenizerFast in which a character's id is its ASCII code.

    decode(encode(x)) == x for printable ASCII, tabs and line ends; other characters are <unk>. Ids
    0, 1 and 2 are pad, bos and eos; encoding adds none of them. Ids above 127 are never made.

    Throws UsageError for fewer than 128 entries.
    """
    if vocab_size < _ASCII:
        raise UsageError(f"a vocabulary of {vocab_size} has no room for ASCII. Give 128 or more.")
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {chr(code): code for code in range(len(_SPECIAL), _ASCII)}
    ids |= {token: code for code, token in enumerate(_SPECIAL)}
    ids |= {f"<unused{code}>": code for code in range(_ASCII, vocab_size)}
    pad, bos, eos, unknown = _SPECIAL
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    wrap: Any = PreTrainedTokenizerFast
    return wrap(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unknown,
        clean_up_tokenization_spaces=False,
    )
