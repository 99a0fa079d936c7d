"""What ranks of a test of tensor-parallel generation do."""

from __future__ import annotations

from typing import Any

import torch
from generation_models import engine, make_model, prompts

from hybridengine import Communicator, Layout, Spec, UsageError
from hybridengine.rlhf.generation import SamplingParams, generate
from hybridengine.rlhf.generation.tensor_parallel import shard_model

PARAMS = SamplingParams(max_tokens=8, seed=4)


def _local(model: Any, layout: Layout, rank: int) -> dict[str, torch.Tensor]:
    """The tensors of one rank, cut out of the whole model where the layout says."""
    whole = dict(model.named_parameters())
    cut = {name: torch.full(shape, torch.nan).double() for name, shape, _ in layout.locals(rank)}
    for name, local, start, size, offset, strides in layout.pieces(rank):
        box = whole[name][tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]
        torch.as_strided(cut[local], size, strides, offset).copy_(box.detach())
    return cut


def logits_and_tokens(
    comm: Communicator, cases: list[tuple[str, dict[str, Any]]]
) -> list[tuple[torch.Tensor, list[list[int]]]]:
    """Of each case on one rank of as many as `comm` has."""
    results = []
    for architecture, facts in cases:
        whole = make_model(architecture, **facts)
        layout = Layout.tensor_parallel(comm.world).bind(Spec.from_config(whole.config))
        shard: Any = shard_model(whole.config, comm.rank, comm.world, comm)
        assert Spec.from_config(shard.config) == layout.spec
        generator = engine(shard, 3, cache_bytes=lambda: 1 << 20)
        generator.load_weights(_local(whole, layout, comm.rank), 1)
        with torch.no_grad():
            logits = shard(torch.tensor([[2, 3, 4, 5], [9, 8, 23, 12]])).logits
        found = generate(generator, prompts(5), PARAMS, range(5))
        results.append((logits, [generation.ids for generation in found]))
    return results


def logits_or_words(comm: Communicator, architectures: list[str]) -> dict[str, torch.Tensor | str]:
    """One rank's logits of each architecture, or why it is not cut."""
    found: dict[str, torch.Tensor | str] = {}
    for name in architectures:
        try:
            found[name] = logits_and_tokens(comm, [(name, {})])[0][0]
        except UsageError as error:
            found[name] = str(error)
    return found
