"""Data: samples from files and generators, as token ids, in an order that can be resumed.

    samples = open_data(config, "train")
    encoded, counts = PromptEncoder(tokenizer, max_prompt_length=1024).encode(samples)
    loader = PromptLoader(len(encoded), batch_size=512, seed=0)
    rows = [encoded[i] for i in loader.next_batch()]

Importing this package imports none of the libraries that read or tokenise.
"""

from hybridengine.rlhf.data.characters import character_tokenizer
from hybridengine.rlhf.data.encoding import (
    Counts,
    Encoded,
    PromptEncoder,
    load_tokenizer,
    load_vocabulary,
)
from hybridengine.rlhf.data.files import read_files, read_pairs
from hybridengine.rlhf.data.gym import GymDataset, make_gym
from hybridengine.rlhf.data.held_out import hold_out
from hybridengine.rlhf.data.loader import PromptLoader, digest_of
from hybridengine.rlhf.data.responses import (
    EncodedPreference,
    EncodedResponse,
    encode_pairs,
    encode_preferences,
)
from hybridengine.rlhf.data.rollout_rows import drop_groups, token_columns
from hybridengine.rlhf.data.samples import Message, Pair, Sample, Tokens
from hybridengine.rlhf.data.splits import open_data

__all__ = [
    "Counts",
    "Encoded",
    "EncodedPreference",
    "EncodedResponse",
    "GymDataset",
    "Message",
    "Pair",
    "PromptEncoder",
    "PromptLoader",
    "Sample",
    "Tokens",
    "character_tokenizer",
    "digest_of",
    "drop_groups",
    "encode_pairs",
    "encode_preferences",
    "hold_out",
    "load_tokenizer",
    "load_vocabulary",
    "make_gym",
    "open_data",
    "read_files",
    "read_pairs",
    "token_columns",
]
