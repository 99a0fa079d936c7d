"""backends: what trains or measures the models of a rank's roles, by the name in the config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybridengine.rlhf.config.roles import Actor, Critic, Sharding
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.roles.sharded import sharded_model
from hybridengine.rlhf.training.backend import Backend
from hybridengine.rlhf.training.fsdp2 import Fsdp2
from hybridengine.rlhf.training.models import Kind
from hybridengine.rlhf.workers import RankContext


@dataclass(frozen=True)
class Task:
    """A model of a role: that of `path`, or else of the config's `model`, held as `section` says,
    which trains where the section has an optimizer. `total_steps`: those of the optimizer, after
    which a schedule that falls is at 0."""

    kind: Kind
    section: Sharding
    path: str | None = None
    temperature: float = 1.0
    total_steps: int | None = None


def fsdp2(context: RankContext, config: Config, task: Task) -> Fsdp2:
    section = task.section
    module = sharded_model(
        context,
        config,
        task.kind,
        section,
        task.path,
        trains=isinstance(section, Actor | Critic),
        lora=section.lora if isinstance(section, Actor) else None,
    )
    return Fsdp2(
        module,
        section,
        comm=context.comm,
        temperature=task.temperature,
        total_steps=task.total_steps,
        seed=config.seed,
        progress=context.progress,
    )


# By `strategy` of the section.
BACKENDS: dict[str, Callable[[RankContext, Config, Task], Backend]] = {"fsdp2": fsdp2}


def open_backend(context: RankContext, config: Config, task: Task) -> Backend:
    """The backend of `task` on this rank. Throws UsageError as build_model does. Collective."""
    strategy = task.section.strategy
    return BACKENDS["fsdp2" if strategy == "auto" else strategy](context, config, task)
