"""forward: hidden states of the tokens of a micro-batch, and what the heads make of them.

Heads are applied here, to chunks of the hidden states and only where something is asked for, so
that logits of all tokens never exist at once. Everything runs inside of `within_forward`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.utils.checkpoint import checkpoint

from hybridengine._core import UsageError
from hybridengine.rlhf.algorithms import entropy, token_log_probs
from hybridengine.rlhf.algorithms.masks import widen
from hybridengine.rlhf.batch import Batch
from hybridengine.rlhf.training.attention import packed_arguments

# Logits computed at a time: 256 MiB of them in float32, with a few copies in the entropy.
CHUNK_ELEMS = 1 << 26

# What is wanted of the entropy: none (zeros), its value, or its gradient too.
Spread = Literal["none", "value", "gradient"]


def add_forward_method(module: nn.Module) -> None:
    """Gives `module` the method `within_forward(function, *args)`, which calls function(module,
    *args) with the root's weights gathered, as FSDP2 does for its forward pass."""
    module.within_forward = MethodType(_within_forward, module)  # type: ignore[assignment]
    register_fsdp_forward_method(module, "within_forward")


def _within_forward(module: nn.Module, function: Callable[..., Any], *args: Any) -> Any:
    return function(module, *args)


def hidden_states(module: Any, batch: Batch, packed: bool) -> torch.Tensor:
    """[N, hidden] of the last layer, for the N tokens of `batch`, each given those before it."""
    device = device_of(module)
    ids = batch.tokens["ids"].to(device)
    if packed:
        arguments = packed_arguments(module, batch, device)
        hidden = module.base_model(input_ids=ids[None], use_cache=False, **arguments)
        return hidden.last_hidden_state[0]  # type: ignore[no-any-return]
    hidden = module.base_model(
        input_ids=batch.pad(ids), attention_mask=batch.pad(torch.ones_like(ids)), use_cache=False
    )
    return batch.flat(hidden.last_hidden_state)


def policy_outputs(
    module: nn.Module, batch: Batch, packed: bool, temperature: float, spread: Spread
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropy [N] after temperature, 0 where the mask is false; float32 or wider."""
    hidden = hidden_states(module, batch, packed)
    wanted = _trainable(batch)
    targets = batch.tokens["ids"][wanted].to(hidden.device)
    wanted = wanted.to(hidden.device)
    parts = _in_chunks(module, hidden[wanted - 1], targets, temperature, spread)
    whole = [part.new_zeros(len(hidden)).index_copy(0, wanted, part) for part in parts]
    return whole[0], whole[1]


def head_outputs(module: Any, batch: Batch, packed: bool) -> torch.Tensor:
    """[N]: the head of one number behind each token; float32 or wider."""
    hidden = widen(hidden_states(module, batch, packed))
    head = module.score
    outputs = hidden @ widen(head.weight)[0]
    return outputs if head.bias is None else outputs + widen(head.bias)


def _trainable(batch: Batch) -> torch.Tensor:
    """int64 [K]: the indices of trainable tokens. Throws UsageError on a first token among them,
    which no output is about."""
    mask = batch.tokens["mask"]
    firsts = batch.first_tokens()
    faulty = torch.nonzero(mask[firsts])
    if len(faulty):
        raise UsageError(
            f"row {int(faulty[0])} has a trainable first token: nothing comes before it. Begin "
            "every row with a token of the prompt."
        )
    return torch.nonzero(mask)[:, 0]


def _in_chunks(
    module: nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    spread: Spread,
) -> list[torch.Tensor]:
    """Log-probs and entropy [K] for hidden [K, hidden] and targets [K]."""
    vocabulary: int = module.config.get_text_config().vocab_size  # type: ignore[operator,union-attr]
    size = max(1, CHUNK_ELEMS // vocabulary)
    if len(hidden) <= size:
        return list(_chunk(module, hidden, targets, temperature, spread))
    chunks = [
        checkpoint(  # logits are computed again in the backward pass
            _chunk, module, *piece, temperature, spread, use_reentrant=False
        )
        for piece in zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    ]
    return [torch.cat(parts) for parts in zip(*chunks, strict=True)]


def _chunk(
    module: Any,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    spread: Spread,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = widen(_logits(module, hidden))
    log_probs = token_log_probs(logits, targets, temperature=temperature)
    if spread == "none":
        return log_probs, torch.zeros_like(log_probs)
    with torch.set_grad_enabled(spread == "gradient" and torch.is_grad_enabled()):
        return log_probs, entropy(logits, temperature=temperature)


def _logits(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """What the language model's head gives, with what some families do to it afterwards."""
    logits: torch.Tensor = module.get_output_embeddings()(hidden)
    config = module.config.get_text_config()
    if (scale := getattr(config, "logit_scale", None)) is not None:
        logits = logits * scale
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        logits = logits / divisor
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        logits = torch.tanh(logits / cap) * cap
    return logits


def device_of(module: nn.Module) -> torch.device:
    """Where the model computes; shards may lie in host memory meanwhile."""
    parameter = next(module.parameters())
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None or mesh.device_type == "cpu":
        return parameter.device if mesh is None else torch.device("cpu")
    return torch.device(
        mesh.device_type, torch.get_device_module(mesh.device_type).current_device()
    )
