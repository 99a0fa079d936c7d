"""Moves exactly the weight bytes that each rank lacks, from one sharding to another.

torch is imported with the first name that needs it, so that the command line starts at once.
"""

from typing import TYPE_CHECKING, Any

from hybridengine._core import InternalError, TimeoutError, TransportError, UsageError
from hybridengine.comm import Communicator
from hybridengine.layout import Layout, LayoutRule
from hybridengine.mapping import Mapping, ModelConfig
from hybridengine.planning import plan
from hybridengine.report import Report
from hybridengine.spec import Spec

if TYPE_CHECKING:
    from hybridengine.background import Work
    from hybridengine.collectives import (
        all_gather,
        all_reduce,
        barrier,
        broadcast,
        ddp_hook,
        reduce_scatter,
    )
    from hybridengine.fresh import empty
    from hybridengine.gradients import GradientReducer
    from hybridengine.resharder import Resharder, reshard

__all__ = [
    "Communicator",
    "GradientReducer",
    "InternalError",
    "Layout",
    "LayoutRule",
    "Mapping",
    "ModelConfig",
    "Report",
    "Resharder",
    "Spec",
    "TimeoutError",
    "TransportError",
    "UsageError",
    "Work",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "ddp_hook",
    "empty",
    "plan",
    "reduce_scatter",
    "reshard",
]

_LAZY = {  # what needs torch, or is not needed by the command line
    "GradientReducer": "gradients",
    "Resharder": "resharder",
    "Work": "background",
    "all_gather": "collectives",
    "all_reduce": "collectives",
    "barrier": "collectives",
    "broadcast": "collectives",
    "ddp_hook": "collectives",
    "empty": "fresh",
    "reduce_scatter": "collectives",
    "reshard": "resharder",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = getattr(import_module(f"hybridengine.{_LAZY[name]}"), name)
    return globals()[name]
