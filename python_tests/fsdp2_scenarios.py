"""What the ranks of test_fsdp2.py do: real fully_shard modules under gloo, one process a rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import tiny_models as tiny
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from hybridengine import Communicator, Resharder, Spec, reshard


class Net(nn.Module):
    """Rows that do not divide, tied weights, a frozen one, a scalar and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.inner = nn.Linear(5, 3)
        self.narrow = nn.Linear(3, 1)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        self.inner.bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(3.5))
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))


def start(comm: Communicator, folder: str) -> None:
    torch.manual_seed(0)  # the same weights everywhere
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=comm.rank, world_size=comm.world
    )


def compare(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    tiny.assert_same(got, {name: tensor.detach() for name, tensor in expected.items()})


def shard_and_move(comm: Communicator, folder: str, explicit: bool) -> list[Any]:
    """fsdp2(world) -> vllm(tp=1) and back into the sharded module, twice with other weights."""
    start(comm, folder)
    model = Net()
    whole = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    mesh = init_device_mesh("cpu", (comm.world,))
    fully_shard(model, mesh=mesh, ignored_params={model.scale})
    options: dict[str, Any] = {"comm": comm} if explicit else {}
    src, last = f"fsdp2({comm.world})", comm.world - 1
    resharder = Resharder(model, src, f"vllm(tp=1)@{last}", **options)
    received = []
    for round_ in range(2):
        got = resharder.run()
        if comm.rank == last:
            whole_now = {n: t + round_ * (n != "mean") for n, t in whole.items()}
            compare(got, whole_now | {"head.weight": whole_now["embed.weight"]})
            assert got["head.weight"] is got["embed.weight"]
        received.append(resharder.report.received_bytes)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
    bf16 = reshard(model, src, f"replicated({comm.world})", dtype=torch.bfloat16, **options)
    compare(bf16, {n: (t + 2 * (n != "mean")).bfloat16() for n, t in whole.items()})
    source = {n: t for n, t in whole.items() if n != "head.weight"} if comm.rank == last else None
    local = {n: t for n, t in model.state_dict(keep_vars=True).items() if n != "head.weight"}
    reshard(source, f"hf@{last}", src, out=local, **options)
    for name, tensor in model.state_dict().items():
        tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        assert tensor.equal(whole[name]), name
    dist.destroy_process_group()
    return received


def partial_sums_are_refused(comm: Communicator, folder: str) -> str:
    from torch.distributed.tensor import DTensor, Partial

    start(comm, folder)
    mesh = init_device_mesh("cpu", (comm.world,))
    summand = DTensor.from_local(torch.ones(2), mesh, [Partial()])
    try:
        reshard({"w": summand}, "replicated(2)", "hf", comm=comm)
        return "moved"
    except ValueError as error:
        return str(error)
    finally:
        dist.destroy_process_group()


def shard_twice(comm: Communicator, folder: str, facts: dict[str, Any]) -> list[str]:
    """FSDP2 of what tensor parallelism leaves, on a 2 x 2 mesh, into vllm(tp=2) and back to HF."""
    start(comm, folder)
    spec = Spec.from_config(facts)
    full = tiny.weights(spec)
    model = _decoder(spec, full)
    model.config = SimpleNamespace(to_dict=lambda: facts)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    columns = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
    plan = {f"**.{name}": ColwiseParallel() for name in columns[:-1]}
    plan |= {name: RowwiseParallel() for name in ("**.o_proj", "**.down_proj")}
    plan |= {"lm_head": ColwiseParallel(), "model.embed_tokens": RowwiseParallel()}
    for pattern, style in plan.items():
        names = [n for n, _ in model.named_modules() if n.endswith(pattern.removeprefix("**"))]
        for name in names:
            parallelize_module(model, mesh["tp"], {name: style})
    fully_shard(model, mesh=mesh["dp"])
    placements = model.model.layers[0].self_attn.q_proj.weight.placements
    fused = reshard(model, "fsdp2(2,tp=2)", "vllm(tp=2,replicas=2)", comm=comm)
    compare(fused, tiny.vllm(full, facts, 2, comm.rank % 2))
    back = reshard(model, "fsdp2(2,tp=2)", "hf@3", comm=comm)
    compare(back, full if comm.rank == 3 else {})
    dist.destroy_process_group()
    return [type(placement).__name__ for placement in placements]


def _decoder(spec: Spec, full: tiny.Tensors) -> nn.Module:
    """Nested modules whose parameters have the names of `spec`."""
    root = nn.Module()
    for name, shape, _ in spec.tensors:
        *path, owner, leaf = name.split(".")
        at = root
        for part in path:
            at = _child(at, part)
        if owner not in at._modules:
            bias = f"{name.removesuffix(leaf)}bias" in full
            if owner == "embed_tokens":
                made: nn.Module = nn.Embedding(*shape)
            elif len(shape) == 1:
                made = nn.RMSNorm(shape[0])
            else:
                made = nn.Linear(shape[1], shape[0], bias=bias)
            at.add_module(owner, made)
        with torch.no_grad():
            getattr(at._modules[owner], leaf).copy_(full[name])
    return root


def _child(parent: nn.Module, name: str) -> nn.Module:
    if name not in parent._modules:
        parent.add_module(name, nn.ModuleList() if name == "layers" else nn.Module())
    return parent._modules[name]
