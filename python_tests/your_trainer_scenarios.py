"""What the ranks of test_your_trainer.py do: the code of docs/your_trainer.md, block by block."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hybridengine import Communicator, Spec

PAGE = Path(__file__).parents[1] / "docs" / "your_trainer.md"
_Names = dict[str, Any]


def blocks() -> list[tuple[str, str]]:
    """(heading, code) of every block of Python on the page."""
    found = []
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        heading = section.split("\n", 1)[0]
        found += [
            (heading, code) for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        ]
    return found


def run_page(comm: Communicator, folder: str) -> list[str]:
    """Runs all blocks as one program, with a look at what each section made."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=comm.rank, world_size=comm.world
    )
    names: _Names = {"path": f"{folder}/model", "train_one_step": _train_one_step}
    seen = []
    pending = blocks()
    for number, (heading, code) in enumerate(pending):
        if heading == "Into vLLM":
            names.setdefault("worker", _Worker(names["trainer"]))
        exec(compile(code, f"{PAGE}, {heading}", "exec"), names)
        if number + 1 == len(pending) or pending[number + 1][0] != heading:
            _CHECKS[heading](names)
            seen.append(heading)
    dist.destroy_process_group()
    return seen


def _train_one_step(module: nn.Module) -> None:
    """All trainable weights move, by other amounts each time."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    module(input_ids=torch.arange(6)[None]).logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def _whole(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        for name, tensor in module.state_dict().items()
    }


def _check_engine(names: _Names) -> None:
    _same_as(names["engine"], _whole(names["trainer"]))
    assert names["resharder"].report.received_over_bound == 1.0


def _same_as(engine: nn.Module, expected: dict[str, torch.Tensor]) -> None:
    held = engine.state_dict()
    assert sorted(held) == sorted(expected)
    for name, tensor in expected.items():
        assert held[name].dtype is torch.bfloat16
        assert torch.equal(held[name], tensor.bfloat16()), name


def _check_ddp(names: _Names) -> None:
    _check_shards(names["shards"], names["whole"].state_dict(), torch.float32)


def _check_shards(
    shards: dict[str, torch.Tensor], whole: dict[str, torch.Tensor], dtype: torch.dtype
) -> None:
    """Against slices of the whole: a fused tensor, one cut by columns, a padded one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    layer = "model.layers.1.self_attn."
    parts = [whole[f"{layer}{name}_proj.weight"].chunk(world)[rank] for name in "qkv"]
    assert torch.equal(shards[f"{layer}qkv_proj.weight"], torch.cat(parts).to(dtype))
    output = f"{layer}o_proj.weight"
    assert torch.equal(shards[output], whole[output].chunk(world, 1)[rank].to(dtype))
    table = whole["model.embed_tokens.weight"]
    padded = nn.functional.pad(table, (0, 0, 0, -len(table) % 64)).chunk(world)[rank]
    assert torch.equal(shards["model.embed_tokens.weight"], padded.to(dtype))


def _check_lora(names: _Names) -> None:
    adapted = names["adapted"]
    whole, expected = _whole(adapted), {}
    for name, tensor in whole.items():
        if ".lora_" in name:
            continue
        plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
        if ".base_layer.weight" in name:
            lora = name.removesuffix("base_layer.weight")
            first, second = (whole[f"{lora}lora_{each}.default.weight"] for each in "AB")
            assert second.abs().max() > 0  # it was trained
            tensor = tensor + second @ first * (8 / 4)  # peft's alpha over the rank
        expected[plain] = tensor
    for name, tensor in expected.items():
        torch.testing.assert_close(
            names["engine"].state_dict()[name].float(), tensor, rtol=2**-8, atol=1e-6
        )


def _check_partial(names: _Names) -> None:
    expected = _whole(names["trainer"])
    assert len(names["norms"]) == 5
    for name, tensor in names["norms"].items():
        assert torch.equal(tensor, expected[name].bfloat16()), name
    other = "model.layers.0.mlp.down_proj.weight"
    assert not torch.equal(names["engine"].state_dict()[other], expected[other].bfloat16())


class _Worker(nn.Module):
    """Parameters as vLLM's worker of this rank has them, and its load_weights()."""

    def __init__(self, trainer: Any) -> None:
        super().__init__()
        from hybridengine import LayoutRule

        spec = Spec.from_config(trainer.config, "float32")
        layout = LayoutRule.parse(f"vllm(tp={dist.get_world_size()})").bind(spec)
        self.by_name = {
            name: nn.Parameter(torch.zeros(shape))
            for name, shape, _ in layout.locals(dist.get_rank())
        }
        self.loaded: dict[str, torch.Tensor] = {}

    def named_parameters(self) -> Any:
        return self.by_name.items()

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.loaded.update({name: tensor.clone() for name, tensor in weights})


def _check_vllm(names: _Names) -> None:
    whole, worker = _whole(names["trainer"]), names["worker"]
    _check_shards(names["shards"], whole, torch.float32)
    names["load_shards"](worker, names["shards"])
    _check_shards(dict(worker.named_parameters()), whole, torch.float32)
    assert {"lm_head.weight", *worker.loaded} == set(whole)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in worker.loaded.items())


_CHECKS: dict[str, Callable[[_Names], None]] = {
    "FSDP2 into a transformers module": _check_engine,
    "A state dict": _check_engine,
    "DDP": _check_ddp,
    "LoRA": _check_lora,
    "Some tensors only": _check_partial,
    "Into vLLM": _check_vllm,
}
