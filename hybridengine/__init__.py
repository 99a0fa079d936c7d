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
    from hybridengine.masked import MaskedResult, masked_all_reduce
    from hybridengine.resharder import Resharder, reshard
    from hybridengine.statistics import MeanVar, block_scores, masked_mean_var
    from hybridengine.two_step import TwoStep

__all__ = [
    "Communicator",
    "GradientReducer",
    "InternalError",
    "Layout",
    "LayoutRule",
    "Mapping",
    "MaskedResult",
    "MeanVar",
    "ModelConfig",
    "Report",
    "Resharder",
    "Spec",
    "TimeoutError",
    "TransportError",
    "TwoStep",
    "UsageError",
    "Work",
    "all_gather",
    "all_reduce",
    "barrier",
    "block_scores",
    "broadcast",
    "ddp_hook",
    "empty",
    "masked_all_reduce",
    "masked_mean_var",
    "plan",
    "reduce_scatter",
    "reshard",
]

_LAZY = {  # what needs torch, or is not needed by the command line
    "GradientReducer": "gradients",
    "MaskedResult": "masked",
    "MeanVar": "statistics",
    "Resharder": "resharder",
    "TwoStep": "two_step",
    "Work": "background",
    "all_gather": "collectives",
    "all_reduce": "collectives",
    "barrier": "collectives",
    "block_scores": "statistics",
    "broadcast": "collectives",
    "ddp_hook": "collectives",
    "empty": "fresh",
    "masked_all_reduce": "masked",
    "masked_mean_var": "statistics",
    "reduce_scatter": "collectives",
    "reshard": "resharder",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = getattr(import_module(f"hybridengine.{_LAZY[name]}"), name)
    return globals()[name]
