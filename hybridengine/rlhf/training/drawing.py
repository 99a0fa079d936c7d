"""drawing: the weights of a seed, one decoder layer at a time.

They are those that transformers would draw for the whole model at once, which nobody holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hybridengine.rlhf.training.models import Kind, from_config

Weight = tuple[str, torch.Tensor]


@torch.no_grad()
def drawn_weights(
    facts: dict[str, Any], kind: Kind, seed: int, dtype: torch.dtype
) -> Iterator[Weight]:
    """The weights of the model of a HF config, but for its head of one number, by name and on the
    host; each is gone with the next one. The same on every rank, and for every type narrower than
    float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with _nothing_kept() as states:
            whole: Any = from_config(facts, kind, torch.promote_types(dtype, torch.float32))
        backbone = whole.base_model
        torch.set_rng_state(states[backbone])
        made, within = set(backbone.modules()), _within_blocks(whole)
        for name, module, owner in _in_order("", whole, whole):
            _begin(module, as_made=module not in made)
            owner._init_weights(module)
            if module in within:
                continue  # its block may have a word about it yet
            if name != "score":
                yield from _held(name, module)
            module.to("meta")


def _begin(module: Any, *, as_made: bool) -> None:
    """Memory for its own weights. A head is made, which draws, after the backbone has its weights:
    `as_made` draws that again."""
    for key, each in module._parameters.items():
        if each is not None:
            module._parameters[key] = nn.Parameter(torch.empty_like(each, device="cpu"))
    if as_made and hasattr(module, "reset_parameters"):
        module.reset_parameters()


def _held(name: str, module: nn.Module) -> Iterator[Weight]:
    """What of it has memory."""
    for key, each in module.named_parameters(prefix=name):
        if not each.is_meta:
            yield key, each.detach()


def _within_blocks(module: nn.Module) -> set[nn.Module]:
    """What the members of lists of modules consist of."""
    lists = [each for each in module.modules() if isinstance(each, nn.ModuleList)]
    blocks = [block for each in lists for block in each]
    return {part for block in blocks for part in block.modules() if part is not block}


def _in_order(name: str, module: nn.Module, owner: Any) -> Iterator[tuple[str, nn.Module, Any]]:
    """Modules, each with the one that initialises it: what it consists of comes before it."""
    for key, child in module.named_children():
        below = f"{name}.{key}" if name else key
        yield from _in_order(below, child, child if hasattr(child, "_init_weights") else owner)
    yield name, module, owner


@contextmanager
def _nothing_kept() -> Iterator[dict[nn.Module, torch.Tensor]]:
    """Inside, layers draw what torch makes them with and give the memory back at once, and models
    keep, instead of drawing their weights, from which state of the generator they would."""
    from transformers import PreTrainedModel

    kinds: tuple[Any, ...] = (nn.Linear, nn.Embedding)
    resets = [kind.reset_parameters for kind in kinds]
    states: dict[nn.Module, torch.Tensor] = {}

    def dropping(reset: Callable[[Any], None]) -> Callable[[Any], None]:
        def drop(layer: nn.Module) -> None:
            reset(layer)
            layer.to("meta")

        return drop

    model: Any = PreTrainedModel
    initialize = model.initialize_weights
    try:
        for kind, reset in zip(kinds, resets, strict=True):
            kind.reset_parameters = dropping(reset)
        model.initialize_weights = lambda self: states.setdefault(self, torch.get_rng_state())
        yield states
    finally:
        model.initialize_weights = initialize
        for kind, reset in zip(kinds, resets, strict=True):
            kind.reset_parameters = reset
