"""What the ranks of test_placements.py do: DTensors over meshes of every kind."""

from __future__ import annotations

from typing import Any

import tiny_models as tiny
import torch
import torch.distributed as dist
from fsdp2_scenarios import Net, start
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from hybridengine import Communicator, Layout, LayoutRule, Resharder, Spec, UsageError, reshard

FULL = {"w": tiny.numbered(12, 8), "v": tiny.numbered(10, 4, start=100)}

# A mesh of four ranks (its grid, its axes) and placements, and the layout that it is called.
CASES: dict[str, tuple[list[Any], tuple[str, ...] | None, list[Placement], str]] = {
    "other order": ([3, 2, 1, 0], None, [Shard(0)], "fsdp2(4)"),
    "axes swapped": (
        [[0, 1], [2, 3]],
        ("a", "b"),
        [Shard(0), Replicate()],
        "fsdp2(2,replicas=2)",
    ),
    "later dim": ([0, 1, 2, 3], None, [Shard(1)], "fsdp2(4)"),
    "cut twice": ([[0, 2], [1, 3]], ("a", "b"), [Shard(0), Shard(0)], "fsdp2(4)"),
}


def placed(full: torch.Tensor, mesh: DeviceMesh, placements: list[Placement]) -> DTensor:
    """Cut here: distribute_tensor() scatters wrong parts where a mesh is not in ascending order."""
    local = full
    for placement, size, at in zip(placements, mesh.shape, mesh.get_coordinate(), strict=True):
        if isinstance(placement, Shard):
            rows = -(-local.shape[placement.dim] // size)
            first = min(rows * at, local.shape[placement.dim])
            rows = min(rows, local.shape[placement.dim] - first)
            local = local.narrow(placement.dim, first, rows)
    return DTensor.from_local(
        local.clone(), mesh, placements, run_check=False, shape=full.shape, stride=full.stride()
    )


def placed_otherwise(comm: Communicator, folder: str) -> dict[str, tuple[str, str]]:
    """Per case: what the layout's name is answered with, and the text of what the DTensors say.
    The layout that is read from them arrives to the last bit."""
    start(comm, folder)
    found = {}
    for name, (grid, axes, placements, called) in CASES.items():
        mesh = DeviceMesh("cpu", grid, mesh_dim_names=axes)
        model = {n: placed(t, mesh, placements) for n, t in FULL.items()}
        try:
            reshard(model, called, "replicated(4)", comm=comm)
            answer = "moved"
        except UsageError as error:
            answer = str(error)
        got = reshard(model, Layout.of(model), "replicated(4)", comm=comm)
        tiny.assert_same(got, FULL)
        into = {n: placed(torch.zeros_like(t), mesh, placements) for n, t in FULL.items()}
        try:
            reshard(FULL, "replicated(4)", called, comm=comm, out=into)
            written = "moved"
        except UsageError as error:
            written = str(error)
        assert not any(bool(each.to_local().any()) for each in into.values())
        found[name] = (answer, written)
    dist.destroy_process_group()
    return found


def cut_by_data_parallel_ranks_first(comm: Communicator, folder: str, facts: Any) -> str:
    """fsdp2(2,tp=2) is tensor parallelism first, and chunks of what it leaves."""
    start(comm, folder)
    full = tiny.weights(Spec.from_config(facts))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    cuts: dict[str, list[Placement]] = {name: [Shard(0), Shard(0)] for name in full}
    cuts |= {name: [Shard(0), Replicate()] for name in full if "norm" in name}
    cuts |= {name: [Shard(0), Shard(1)] for name in full if "o_proj" in name or "down" in name}
    model = {name: placed(tensor, mesh, cuts[name]) for name, tensor in full.items()}
    src = LayoutRule.parse("fsdp2(2,tp=2)").bind(Spec.from_config(facts))
    try:
        reshard(model, src, "replicated(4)", comm=comm)
        return "moved"
    except UsageError as error:
        return str(error)
    finally:
        dist.destroy_process_group()


def read_what_fsdp2_made(comm: Communicator, folder: str) -> list[bytes]:
    """Layout.of a module of fully_shard is the layout that its string gives, on all ranks."""
    start(comm, folder)
    blobs = []
    for shape, axes, rule in (
        ((4,), None, Layout.fsdp2(4)),
        ((2, 2), ("replicas", "n"), Layout.fsdp2(2, replicas=2)),
    ):
        model = Net()
        fully_shard(
            model,
            ignored_params={model.scale},
            mesh=init_device_mesh("cpu", shape, mesh_dim_names=axes),
        )
        layout = Layout.of(model)
        bound = rule.bind(layout.spec, uncut=["mean", "scale"])
        for rank in range(4):
            assert layout.locals(rank) == bound.locals(rank)
            assert layout.pieces(rank) == bound.pieces(rank)
        blobs.append(layout.save())
    dist.destroy_process_group()
    return blobs


def change_a_sharded_module(comm: Communicator, folder: str) -> tuple[list[str], dict[str, str]]:
    """What runs after changes give: the names of those that moved what is there now, and the words
    of those that were refused."""
    start(comm, folder)

    def made() -> torch.nn.Module:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
        fully_shard(model[0], reshard_after_forward=False)
        fully_shard(model, reshard_after_forward=False)
        return model

    def moved(model: torch.nn.Module, resharder: Resharder) -> bool:
        got = resharder.run()
        now = {n: t.full_tensor() for n, t in model.state_dict().items()}
        return all(got[name].equal(tensor) for name, tensor in now.items())

    model = made()
    resharder = Resharder(model, "fsdp2(2)", "replicated(2)", comm=comm)
    allowed = []
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    allowed += ["trained"] * moved(model, resharder)
    model(torch.ones(2, 5))  # its whole weights stay until the next pass
    allowed += ["unsharded"] * moved(model, resharder)
    model.load_state_dict({n: t.clone().mul_(3) for n, t in model.state_dict().items()})
    allowed += ["loaded"] * moved(model, resharder)

    def assign(model: torch.nn.Module) -> None:
        model.load_state_dict({n: t.clone() for n, t in model.state_dict().items()}, assign=True)

    refused = {}
    changes = {"converted": lambda model: model.to(torch.bfloat16), "assigned": assign}
    for name, change in changes.items():
        model = made()
        again = Communicator(
            dist.distributed_c10d._get_default_store(), comm.rank, 2, name=f"again {name}"
        )
        resharder = Resharder(model, "fsdp2(2)", "replicated(2)", comm=again)
        dist.barrier()  # neither is inside of the constructor any more
        change(model)
        try:
            resharder.run()
        except UsageError as error:
            refused[name] = str(error)
    dist.destroy_process_group()
    return allowed, refused
