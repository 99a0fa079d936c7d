"""What each rank reads of a checkpoint, or keeps of what a seed draws: its parts, and no more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rlhf_training_scenarios import facts, make
from torch.distributed.device_mesh import init_device_mesh

from hybridengine.checkpoint import Checkpoint
from hybridengine.layouts import placements
from hybridengine.layouts.mapping import MAPPINGS
from hybridengine.rlhf.config.roles import Lora, Sharding
from hybridengine.rlhf.config.schema import Model
from hybridengine.rlhf.training.loading import build_model
from hybridengine.rlhf.training.lora import add_adapters
from hybridengine.rlhf.training.models import empty_model
from hybridengine.rlhf.training.optimizer import local
from hybridengine.rlhf.training.sharding import shard

pytestmark = pytest.mark.python

_RANKS = 3


@contextlib.contextmanager
def _rank(rank: int) -> Iterator[Any]:
    """A mesh of three ranks, of which this process is one and the others are nobody: nothing is
    sent while a model is built."""
    from torch.distributed.tensor import debug
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # A process is one rank, but here.
    placements._read_mesh.cache_clear()
    debug._clear_python_sharding_prop_cache()
    debug._clear_fast_path_sharding_prop_cache()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=_RANKS)
    try:
        yield init_device_mesh("cpu", (_RANKS,))
    finally:
        dist.destroy_process_group()


def _shards(model: Model, rank: int, kind: Any = "policy", **options: Any) -> torch.nn.Module:
    with _rank(rank) as mesh:
        sharding = Sharding(dtype="float64")
        return build_model(
            model, kind, torch.float64, 3, cut=lambda m: shard(m, sharding, mesh), **options
        )


def _rows(whole: torch.Tensor, rank: int) -> torch.Tensor:
    """Those of a rank: torch.chunk of dim 0, of which the last ones may be empty."""
    chunks = whole.chunk(_RANKS)
    return chunks[rank] if rank < len(chunks) else whole[:0]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """Tied weights, in several files, narrower than they are held."""
    folder = tmp_path_factory.mktemp("model")
    policy = make(dtype=torch.bfloat16)
    policy.save_pretrained(folder, max_shard_size="3KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder, {name: each.detach().double() for name, each in policy.named_parameters()}


@pytest.mark.parametrize("rank", range(_RANKS))
def test_a_rank_reads_its_own_rows(checkpoint, monkeypatch, rank: int) -> None:
    folder, whole = checkpoint
    read, slice_of = [], Checkpoint.slice

    def counting(self: Checkpoint, *box: Any) -> Any:
        read.append(slice_of(self, *box))
        return read[-1]

    monkeypatch.setattr(Checkpoint, "slice", counting)
    calls: list[None] = []
    module = _shards(Model(path=str(folder)), rank, progress=lambda: calls.append(None))
    held = {name: local(each) for name, each in module.named_parameters()}
    assert held.keys() == whole.keys() and len(calls) == len(whole)
    for name, each in held.items():
        assert each.dtype == torch.float64 and each.equal(_rows(whole[name], rank)), name
    assert sum(each.numel() for each in read) == sum(each.numel() for each in held.values())
    assert module.lm_head.weight is module.model.embed_tokens.weight


@pytest.mark.parametrize("kind", ["policy", "value"])
@pytest.mark.parametrize("model_type", sorted({each.model_type for each in MAPPINGS.values()}))
def test_what_a_seed_draws(model_type: str, kind: str) -> None:
    """To the bit what transformers draws for the whole model, of which no rank holds more than a
    decoder layer."""
    import transformers

    config = facts(model_type, head_dim=8, pad_token_id=0)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        made = transformers.AutoConfig.for_model(**config)
        made.num_labels = 1
        name = "CausalLM" if kind == "policy" else "SequenceClassification"
        whole = getattr(transformers, f"AutoModelFor{name}").from_config(made, dtype=torch.float64)
    module = build_model(Model(config=config), kind, torch.float64, 3)
    buffers = dict(whole.named_buffers())
    assert all(each.equal(buffers[name]) for name, each in module.named_buffers())
    found = dict(module.named_parameters())
    assert found.keys() == dict(whole.named_parameters()).keys()
    for name, each in whole.named_parameters():
        expected = torch.zeros_like(each) if name == "score.weight" else each
        assert found[name].equal(expected), name
    for rank in range(_RANKS):
        for name, each in _shards(Model(config=config), rank, kind).named_parameters():
            assert local(each).equal(_rows(found[name].detach(), rank)), name


def test_adapters_are_drawn_alike_and_the_rest_is_read(checkpoint) -> None:
    folder, whole = checkpoint
    lora, sharding = Lora(rank=2), Sharding(dtype="float64")
    parts: dict[str, list[torch.Tensor]] = {}
    for rank in range(_RANKS):
        with _rank(rank) as mesh:
            module = build_model(
                Model(path=str(folder)),
                "policy",
                torch.float64,
                0,
                cut=lambda m, mesh=mesh: shard(add_adapters(m, lora, 5), sharding, mesh),
            )
        for name, each in module.named_parameters():
            parts.setdefault(name, []).append(local(each).detach())
    adapted = add_adapters(make(), lora, 5)
    for name, each in adapted.named_parameters():
        plain = name.replace(".base_layer", "")
        expected = each.detach() if ".lora_" in name else whole[plain]
        assert torch.cat(parts[name]).equal(expected), name


def test_names_of_a_bare_backbone_and_weights_that_are_kept_apart(tmp_path: Path) -> None:
    """GPT-2's files leave out the prefix of its modules; experts are fused when they are loaded."""
    import transformers

    small = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 16, "n_positions": 8}
    bare = transformers.GPT2Model(transformers.GPT2Config(**small))
    bare.save_pretrained(tmp_path / "bare")
    module = _shards(Model(path=str(tmp_path / "bare")), 1)
    for name, each in bare.named_parameters():
        held = local(module.get_parameter(f"transformer.{name}"))
        assert held.equal(_rows(each.detach().double(), 1)), name
    experts = make(
        model_type="mixtral", num_local_experts=2, num_experts_per_tok=1, dtype=torch.float32
    )
    experts.save_pretrained(tmp_path / "experts")
    module = _shards(Model(path=str(tmp_path / "experts")), 2)
    for name, each in experts.named_parameters():
        assert local(module.get_parameter(name)).equal(_rows(each.detach().double(), 2)), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_adapters_are_those_that_peft_draws(dtype: torch.dtype) -> None:
    """Also on a model without memory, and without a trace in torch's own generator."""
    from peft import LoraConfig, inject_adapter_in_model

    theirs = make(dtype=dtype)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        options = LoraConfig(r=3, lora_alpha=6, target_modules="all-linear")
        inject_adapter_in_model(options, theirs, adapter_name="default")
    expected = {name: each for name, each in theirs.named_parameters() if ".lora_" in name}
    for module in (make(dtype=dtype), empty_model(Model(config=facts()), "policy", dtype=dtype)):
        state = torch.random.get_rng_state()
        add_adapters(module, Lora(rank=3, alpha=6.0), 5)
        assert state.equal(torch.random.get_rng_state())
        found = dict(module.named_parameters())
        for name, each in expected.items():
            assert found[name].dtype == dtype and found[name].equal(each), name
