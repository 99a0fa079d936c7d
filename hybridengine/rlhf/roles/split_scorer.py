"""split_scorer: a reward model whose layers several ranks share (tensor parallelism).

The backbone is cut as the layout `tensor_parallel(t)` says, every rank taking its part of the whole
checkpoint on its host; the head of one number is whole on every rank.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from hybridengine import Communicator, LayoutRule, Resharder, Spec
from hybridengine.rlhf.balance import micro_batches
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.generation import load_weights
from hybridengine.rlhf.generation.tensor_parallel import shard_model

_HEAD = "score.weight"


class SplitScorer:
    """This rank's part. All ranks of `comm` call scores() with the same rows, and get the same."""

    def __init__(self, whole: Any, comm: Communicator, max_tokens: int) -> None:
        """`whole`: a transformers sequence classifier with one output, on the host. Throws
        UsageError on a model that cannot be cut over the ranks. Collective."""
        self._max_tokens = max_tokens
        # The cut is that of the language model of this type, less a head of its own.
        config = copy.deepcopy(whole.config)
        config.architectures, config.tie_word_embeddings = None, True
        tensors = {name: tensor.detach() for name, tensor in whole.named_parameters()}
        self._head = tensors.pop(_HEAD)
        dtype = str(self._head.dtype).removeprefix("torch.")
        spec = Spec.from_config(config, dtype)
        src, dst = (
            LayoutRule.parse(f"{family}({comm.world})").bind(spec)
            for family in ("replicated", "tensor_parallel")
        )
        self.module: Any = shard_model(config, comm.rank, comm.world, comm)
        load_weights(self.module, Resharder(tensors, src, dst, comm=comm).run())

    @torch.no_grad()
    def scores(self, batch: Batch) -> torch.Tensor:
        """[B]: what the head says at the last token of each row. Collective."""
        found = torch.zeros(len(batch), dtype=self._head.dtype)
        for part in micro_batches(batch.lengths.tolist(), self._max_tokens, padded=True):
            rows = batch.select(part)
            real = rows.pad(torch.ones_like(rows["ids"], dtype=torch.bool), False)
            hidden = self.module.model(
                input_ids=rows.padded("ids"), attention_mask=real.long(), use_cache=False
            ).last_hidden_state
            last = hidden[torch.arange(len(rows)), rows.lengths - 1]
            found[torch.tensor(part)] = (last @ self._head.T)[:, 0]
        return found
