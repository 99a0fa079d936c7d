"""Groups of one rank in this process, without Ray: what Steps and Loop need of WorkerGroup.

For tests of what the trainer does with roles; the ranks and references themselves are tested with
Ray in test_rlhf_workers*.py and test_rlhf_train.py.
"""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from hybridengine import Communicator
from hybridengine.rlhf.config.role_names import roles_of
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.trainer.placement import Roles, _class
from hybridengine.rlhf.workers import RankContext, Reference
from hybridengine.rlhf.workers.reference import _with_values
from hybridengine.rlhf.workers.role import dispatched_methods


class _Held:
    """Stands for an object of the store: compared by identity, as Ray's references are by id."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Values(dict):  # type: ignore[type-arg]
    def __missing__(self, held: _Held) -> Any:
        return held.value


class LocalGroup:
    def __init__(self, role: Any) -> None:
        self.role, self.pool, self.num_places = role, "the same for all", 1
        self.cluster = SimpleNamespace(put=lambda value: Reference(_Held(value)))
        self._methods = dispatched_methods(type(role))

    def __getattr__(self, name: str) -> Any:
        dispatch = self._methods[name]

        def call(*args: Any) -> Any:
            if dispatch.mode == "by_place":
                assert len(args[0]) == 1
                args = (args[0][0], *args[1:])
            result = getattr(self.role, name)(*_with_values(args, _Values()))
            if dispatch.returns == "reference":
                result = Reference(_Held(result[0]), result[1], 0)
            return {"all": [result], "none": None}.get(dispatch.collect, result)

        def remote(*args: Any) -> Any:
            found = call(*args)
            return SimpleNamespace(references=found, result=lambda: found)

        call.remote = remote  # type: ignore[attr-defined]
        return call


@contextlib.contextmanager
def one_rank(tmp_path: Any) -> Iterator[RankContext]:
    """The context of the only rank of a world."""
    store = dist.FileStore(str(tmp_path / "store"), 1)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield RankContext(
            pool="train",
            rank=0,
            world=1,
            host="here",
            device=torch.device("cpu"),
            group=dist.group.WORLD,  # type: ignore[arg-type]
            mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("dp",)),
            comm=Communicator(store, 0, 1),
            store=store,
        )
    finally:
        dist.destroy_process_group()


def local_roles(context: RankContext, config: Config) -> Roles:
    groups = {}
    for name in roles_of(config):
        context.roles[name] = _class(name)(context, config)
        groups[name] = LocalGroup(context.roles[name])
    if "rollout" in groups:
        groups["rollout"].connect(None)
    return Roles(**groups)
