"""What ranks do in test_two_step*.py, and the same update done on whole tensors in plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tiny_models as tiny
import torch
import torch.distributed as dist
from ranks import run_threads
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from hybridengine import Communicator, Layout, LayoutRule, Spec, TwoStep
from hybridengine.two_step.clipping import clip, norm_of, sums_of_squares
from hybridengine.two_step.ownership import owners_for

Tensors = dict[str, torch.Tensor]

OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2, amsgrad=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
}


@dataclass(frozen=True)
class Case:
    """A training run of a few steps with made-up gradients."""

    spec: Spec
    train: str
    gen: str
    replicas: int  # data parallel: different gradients
    optimizer: str = "adamw"
    dtype: str | None = None
    max_norm: float | None = None
    grad_op: str = "sum"
    steps: int = 3

    @property
    def train_layout(self) -> Layout:
        return LayoutRule.parse(self.train).bind(self.spec)

    @property
    def gen_layout(self) -> Layout:
        spec = self.spec if self.dtype is None else self.spec.with_dtype(self.dtype)
        return LayoutRule.parse(self.gen).bind(spec)

    @property
    def tensor_parallel(self) -> int:
        return len(self.train_layout.ranks) // self.replicas

    def gradients(self, step: int, replica: int) -> Tensors:
        return random_tensors(self.spec, 1000 * step + replica + 1)


def random_tensors(spec: Spec, seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator).to(getattr(torch, dtype))
        for name, shape, dtype in spec.tensors
    }


def cut(full: Tensors, layout: Layout, rank: int) -> Tensors:
    """The local tensors of a rank, box by box; padding is zero."""
    local = {
        name: torch.zeros(shape, dtype=getattr(torch, dtype))
        for name, shape, dtype in layout.locals(rank)
    }
    for tensor, name, start, size, offset, strides in layout.pieces(rank):
        box = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
        local[name].as_strided(size, strides, offset).copy_(full[tensor][box])
    return local


def run_case(comm: Communicator, case: Case) -> tuple[list[dict[str, Tensors]], TwoStep]:
    """Training and generation tensors after each step, norms under "norm"."""
    start = cut(random_tensors(case.spec, 0), case.train_layout, comm.rank)
    params = {name: torch.nn.Parameter(tensor) for name, tensor in start.items()}
    trains = comm.rank in case.train_layout.ranks
    two_step = TwoStep(
        params if trains else None,
        OPTIMIZERS[case.optimizer],
        case.gen_layout,
        comm=comm,
        train_layout=case.train_layout,
        max_norm=case.max_norm,
        grad_op=case.grad_op,
    )
    seen = [snapshot(params, two_step)]
    for step in range(case.steps):
        two_step.zero_grad()
        local = cut(
            case.gradients(step, comm.rank // case.tensor_parallel), case.train_layout, comm.rank
        )
        for name, each in params.items():
            each.grad = local[name]
        norm = two_step.step()
        seen.append(snapshot(params, two_step) | {"norm": norm})
    return seen, two_step


def snapshot(params: dict[str, torch.nn.Parameter], two_step: TwoStep) -> dict[str, Any]:
    return {
        "training": {name: each.detach().clone() for name, each in params.items()},
        "generation": {name: each.clone() for name, each in two_step.generation.items()},
    }


def expected(case: Case) -> list[tuple[Tensors, float | None]]:
    """Whole masters after each step and the norms: sum in rank order in float32, clip, the same
    optimizer on whole tensors."""
    masters = {
        name: torch.nn.Parameter(tensor.float())
        for name, tensor in random_tensors(case.spec, 0).items()
    }
    optimizer = OPTIMIZERS[case.optimizer](list(masters.values()))
    seen: list[tuple[Tensors, float | None]] = [(copies(masters), None)]
    for step in range(case.steps):
        gradients = summed([case.gradients(step, each) for each in range(case.replicas)])
        if case.grad_op == "mean":
            gradients = {name: each / case.replicas for name, each in gradients.items()}
        norm = None
        if case.max_norm is not None:
            norm = clip_whole(gradients, case.train_layout, case.gen_layout, case.max_norm)
        for name, each in masters.items():
            each.grad = gradients[name]
        optimizer.step()
        seen.append((copies(masters), norm))
    return seen


def summed(gradients: list[Tensors]) -> Tensors:
    total = {name: each.float() for name, each in gradients[0].items()}
    for more in gradients[1:]:
        for name, each in more.items():
            total[name] += each.float()
    return total


def clip_whole(gradients: Tensors, train: Layout, gen: Layout, max_norm: float) -> float:
    """Clips whole tensors by the norm over the blocks that owners would have."""
    owners = owners_for(train, gen)
    pieces = [each for rank in owners.ranks for each in cut(gradients, owners, rank).values()]
    norm = norm_of(sums_of_squares(pieces))
    assert math.isclose(norm, norm_of(sums_of_squares(g.flatten() for g in gradients.values())))
    clip(gradients.values(), norm, max_norm)
    return norm


def copies(tensors: dict[str, torch.nn.Parameter]) -> Tensors:
    return {name: each.detach().clone() for name, each in tensors.items()}


def as_stored(masters: Tensors, layout: Layout) -> Tensors:
    types = {name: getattr(torch, dtype) for name, _, dtype in layout.spec.tensors}
    return {name: each.to(types[name]) for name, each in masters.items()}


class Net(torch.nn.Module):
    """A frozen bias, a buffer, a scalar, and a tensor without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(5, 3)
        with torch.no_grad():  # ranks are threads here, which share torch's generator
            self.inner.weight.copy_(torch.arange(15.0).reshape(3, 5) / 7)
            self.inner.bias.zero_()
        self.inner.bias.requires_grad_(False)
        self.scale = torch.nn.Parameter(torch.tensor(3.5))
        self.none = torch.nn.Parameter(torch.zeros(0, 3))
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))


def give(module: torch.nn.Module, value: float, *names: str) -> None:
    for name, each in module.named_parameters():
        each.grad = torch.full_like(each, value) if name in names else None


def on_two(main: Callable[[Communicator], None]) -> None:
    run_threads(2, main, transport="shm")


def start_group(comm: Communicator, folder: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=comm.rank, world_size=comm.world
    )


def llama(facts: dict[str, Any], dtype: torch.dtype) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    options = {
        key: each for key, each in facts.items() if key not in ("architectures", "torch_dtype")
    }
    return LlamaForCausalLM(LlamaConfig(**options)).to(dtype)


def loss_of(model: Any, rank: int, step: int) -> torch.Tensor:
    tokens = torch.randint(0, 7, (2, 5), generator=torch.Generator().manual_seed(10 * step + rank))
    return model(input_ids=tokens, labels=tokens).loss


def train_llama(
    comm: Communicator, folder: str, facts: dict[str, Any], dtype: str, gen: str
) -> Any:
    """A transformers model in DDP over the default group, against whole tensors that see the
    batches of all ranks. Returns what this rank keeps and moves."""
    from torch.nn.parallel import DistributedDataParallel

    start_group(comm, folder)
    module, reference = (llama(facts, getattr(torch, dtype)) for _ in range(2))
    wrapped = DistributedDataParallel(module)
    factory = OPTIMIZERS["adamw"]
    two_step = TwoStep(wrapped, factory, gen, max_norm=0.5, grad_op="mean")
    spec = Spec.from_config(facts, dtype)
    gen_layout = LayoutRule.parse(gen).bind(spec)
    whole = Layout.replicated(comm.world).bind(spec)
    masters = {n: torch.nn.Parameter(p.detach().float()) for n, p in reference.named_parameters()}
    masters = {name: masters[name] for name, _, _ in spec.tensors}
    optimizer = factory(list(masters.values()))
    for step in range(2):
        two_step.zero_grad()
        with wrapped.no_sync():
            loss_of(wrapped, comm.rank, step).backward()
        norm = two_step.step()
        grads = []
        for rank in range(comm.world):
            reference.zero_grad()
            loss_of(reference, rank, step).backward()
            grads.append({n: p.grad.clone() for n, p in reference.named_parameters()})
        total = {n: each / comm.world for n, each in summed(grads).items()}
        assert norm == clip_whole({name: total[name] for name in masters}, whole, gen_layout, 0.5)
        for name, each in masters.items():
            each.grad = total[name]
        optimizer.step()
        stored = as_stored(copies(masters), gen_layout)
        with torch.no_grad():
            for name, each in reference.named_parameters():
                each.copy_(stored[name])
        named = dict(module.named_parameters())
        tiny.assert_same({n: named[n].detach() for n in stored}, stored)
        wanted = cut(stored, gen_layout, comm.rank)
        tiny.assert_same({name: two_step.generation[name] for name in wanted}, wanted)
    dist.destroy_process_group()
    state = two_step.optimizer.state
    return {
        "elements": sum(each.numel() for each in state),
        "moments": sum(each.numel() for row in state.values() for each in row.values()),
        "model": sum(math.prod(shape) for _, shape, _ in spec.tensors),
        "report": two_step.report,
        "names": sorted(two_step.generation),
    }


def train_tensor_parallel(comm: Communicator, folder: str, facts: dict[str, Any]) -> list[str]:
    """DTensors over a tp mesh, on 2 x 2 ranks: each data parallel rank has gradients of its own."""
    start_group(comm, folder)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    module = llama(facts, torch.bfloat16)
    whole = {name: each.detach().clone() for name, each in module.named_parameters()}
    for name in [name for name, _ in module.named_modules()]:
        leaf = name.rsplit(".", 1)[-1]
        if leaf in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head"):
            parallelize_module(module, mesh["tp"], {name: ColwiseParallel()})
        elif leaf in ("o_proj", "down_proj", "embed_tokens"):
            parallelize_module(module, mesh["tp"], {name: RowwiseParallel()})
    two_step = TwoStep(module, OPTIMIZERS["sgd"], "vllm(tp=2,dp=2)", comm=comm)
    spec = Spec.from_config(facts, "bfloat16")
    gen = LayoutRule.parse("vllm(tp=2,dp=2)").bind(spec)
    gradients = [random_tensors(spec, 1 + replica) for replica in range(2)]
    for name, each in module.named_parameters():
        full = gradients[comm.rank // 2][name]
        if not hasattr(each, "placements"):
            each.grad = full
            continue
        local = distribute_tensor(full, mesh["tp"], each.placements, src_data_rank=None)
        each.grad = local
    two_step.step()
    total = summed(gradients)
    stored = {name: (whole[name].float() - 0.1 * total[name]).bfloat16() for name in total}
    for name, each in module.named_parameters():
        got = each.full_tensor() if hasattr(each, "full_tensor") else each
        assert tiny.bits(got) == tiny.bits(stored[name]), name
    wanted = cut(stored, gen, comm.rank)
    tiny.assert_same(two_step.generation, wanted)
    dist.destroy_process_group()
    return [type(each).__name__ for each in module.parameters()]


def sharded_modules_are_refused(comm: Communicator, folder: str) -> str:
    start_group(comm, folder)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4))
    fully_shard(module[0], mesh=init_device_mesh("cpu", (comm.world,)))
    try:
        TwoStep(module, OPTIMIZERS["sgd"], "replicated(2)", comm=comm)
        return "made"
    except ValueError as error:
        return str(error)
    finally:
        dist.destroy_process_group()
