"""split_scorer: a reward model whose layers several ranks share (tensor parallelism).

The backbone is cut as the layout `tensor_parallel(t)` says, every rank reading its part of the
checkpoint; the head of one number is whole on every rank.
"""

from __future__ import annotations

from typing import Any

import torch

from hybridengine import Communicator, LayoutRule, Spec
from hybridengine.checkpoint import Checkpoint
from hybridengine.models.shards import load_shards
from hybridengine.rlhf.balance import micro_batches
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.generation import load_weights
from hybridengine.rlhf.generation.tensor_parallel import shard_model
from hybridengine.rlhf.model_files import model_directory
from hybridengine.rlhf.training.models import empty_model

_HEAD = "score.weight"


class SplitScorer:
    """This rank's part. All ranks of `comm` call scores() with the same rows, and get the same."""

    def __init__(self, config: Config, comm: Communicator, max_tokens: int) -> None:
        """Reads its part of `reward_model.path`. Throws UsageError on a model that cannot be cut
        over the ranks, and where the files are no safetensors."""
        self._max_tokens = max_tokens
        model = config.reward_model
        dtype: torch.dtype = getattr(torch, model.dtype)
        empty: Any = empty_model(config.model, "classifier", model.path, dtype)
        # The cut is that of the language model of this type, less a head of its own.
        hf_config = empty.config
        hf_config.architectures, hf_config.tie_word_embeddings = None, True
        spec = Spec.from_config(hf_config, model.dtype)
        layout = LayoutRule.parse(f"tensor_parallel({comm.world})").bind(spec)
        checkpoint = Checkpoint(model_directory(str(model.path)))
        self._head = torch.zeros_like(empty.score.weight, device="cpu")
        if _HEAD in checkpoint.names:
            self._head.copy_(checkpoint.tensor(_HEAD))
        self.module: Any = shard_model(hf_config, comm.rank, comm.world, comm)
        load_weights(self.module, load_shards(checkpoint, layout, comm.rank))

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
