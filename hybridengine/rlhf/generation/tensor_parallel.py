"""tensor_parallel: one rank's part of a transformers model, cut as the layout `tensor_parallel(n)`.

For generation only: nothing here has a backward pass. Each layer runs on the heads and the part of
the intermediate size that a rank holds; partial sums are added over the ranks, and logits gathered.
The module's parameters have the names and shapes of the layout's local tensors, so that a Resharder
writes what they are to point at.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from hybridengine._core import UsageError
from hybridengine.collective.collectives import all_gather, all_reduce
from hybridengine.comm import Communicator
from hybridengine.layouts.layout import Layout
from hybridengine.layouts.spec import Spec
from hybridengine.rlhf.generation.weights import hollow

_ROWS = ("o_proj", "down_proj")  # cut by input features: what they give is a partial sum
_CUT = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")


def shard_model(config: Any, rank: int, size: int, comm: Communicator) -> torch.nn.Module:
    """The part of rank `rank` of `size` of the model of a transformers `config`, without weights.

    Its parameters take no memory and no gradient: give them tensors with load_weights() before it
    runs. Its config is that of the whole model. All ranks of `comm`, which are the tensor-parallel
    ones in order, must call it with the same inputs; all get the same logits [B, T, V] of the whole
    vocabulary, to the bit.

    Throws UsageError as check_cut does.
    """
    if (comm.rank, comm.world) != (rank, size):
        raise UsageError(
            f"shard {rank} of {size} is asked for on rank {comm.rank} of a communicator of "
            f"{comm.world}. Pass the communicator of the tensor-parallel ranks."
        )
    model = _part(config, size)
    if size > 1:
        _join_ranks(model, config.vocab_size // size, comm)
    for name in (*_CUT, "pad_token_id"):
        # Its layers took their sizes when they were built; whoever reads it means the whole model.
        setattr(model.config, name, getattr(config, name))
    module: torch.nn.Module = model.eval()
    return module


def check_cut(config: Any, size: int) -> None:
    """Throws UsageError where shard_model() cannot cut the model of a transformers `config` over
    `size` ranks: it has no mapping, sizes that do not divide (then with those that do), or layers
    that do more than cut weights tell. Takes no memory for weights and needs no other rank."""
    _part(config, size)


def _part(config: Any, size: int) -> Any:
    """The module of a rank by itself: no partial result is made whole yet."""
    layout = Layout.tensor_parallel(size).bind(Spec.from_config(config))
    model = _without_weights(_local_config(config, size))
    model.tie_weights()
    _check(model, layout.locals(0), size)
    return model


def _local_config(config: Any, size: int) -> Any:
    """A config whose model has the shapes of one rank."""
    local = copy.deepcopy(config)
    heads = config.num_attention_heads
    local.head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    for name in _CUT:
        # Where ranks are more than kv heads, several hold the same one.
        setattr(local, name, max(1, getattr(config, name) // size))
    return local


def _without_weights(config: Any) -> Any:
    from accelerate import init_empty_weights  # type: ignore[import-untyped]
    from transformers import AutoModelForCausalLM

    # A pad token may lie beyond the part of the vocabulary, and only training needs it.
    config.pad_token_id = None
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=config.dtype)  # type: ignore[no-untyped-call]
    return hollow(model)


def _join_ranks(model: Any, rows: int, comm: Communicator) -> None:
    """Makes partial results whole. `rows`: how much of the vocabulary each rank holds."""
    embedding = _EmbeddingPart(comm.rank * rows, rows, comm)
    model.get_input_embeddings().register_forward_pre_hook(embedding.before)
    model.get_input_embeddings().register_forward_hook(embedding.after)
    for name, module in list(model.named_modules()):
        if name.rsplit(".", 1)[-1] in _ROWS:
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], _SummedLinear(module, comm))
    model.get_output_embeddings().register_forward_hook(_Gather(comm))


class _SummedLinear(torch.nn.Module):
    """A linear layer cut by input features; its bias, which every rank holds, is added once."""

    def __init__(self, linear: torch.nn.Linear, comm: Communicator) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self._comm = comm

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out = torch.nn.functional.linear(inputs, self.weight)
        all_reduce(out, comm=self._comm)
        return out if self.bias is None else out + self.bias


class _EmbeddingPart:
    """Hooks of an embedding that holds rows `first` to `first + rows` of the vocabulary: tokens of
    other ranks count 0 here."""

    def __init__(self, first: int, rows: int, comm: Communicator) -> None:
        self._first, self._rows, self._comm = first, rows, comm
        self._others = torch.empty(0, dtype=torch.bool)

    def before(self, module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        tokens = inputs[0] - self._first
        self._others = (tokens < 0) | (tokens >= self._rows)
        return (tokens.masked_fill(self._others, 0),)

    def after(
        self, module: torch.nn.Module, inputs: tuple[torch.Tensor], out: torch.Tensor
    ) -> torch.Tensor:
        out = out.masked_fill(self._others[..., None], 0)
        all_reduce(out, comm=self._comm)
        return out


class _Gather:
    """A hook of a head that is cut by vocabulary: [..., V / n] of each rank to [..., V]."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def __call__(
        self, module: torch.nn.Module, inputs: tuple[torch.Tensor], out: torch.Tensor
    ) -> torch.Tensor:
        mine = out.contiguous()[None]
        parts = mine.new_empty(self._comm.world, *mine.shape[1:])
        all_gather(parts, mine, comm=self._comm)
        return parts.movedim(0, -2).flatten(-2)


def _check(model: Any, expected: list[tuple[str, tuple[int, ...], str]], size: int) -> None:
    """Against what the layout says of every rank. They differ where a layer looks at more than its
    own heads, as a norm over all of them does."""
    found = {name: tuple(p.shape) for name, p in model.named_parameters()}
    wanted = {name: tuple(shape) for name, shape, _ in expected}
    if found != wanted:
        name = min(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        raise UsageError(
            f"models of type {model.config.model_type!r} cannot be cut over {size} ranks that "
            f"generate: layers with fewer heads have {name!r} as {_shape(found, name)}, the layout "
            f"tensor_parallel({size}) as {_shape(wanted, name)}. Use a tp_size of 1."
        )


def _shape(shapes: dict[str, tuple[int, ...]], name: str) -> str:
    return str(list(shapes[name])) if name in shapes else "nothing"
