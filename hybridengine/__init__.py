"""Moves exactly the weight bytes that each rank lacks, from one sharding to another.

torch is imported with the first name that needs it, so that the command line starts at once.
"""

from typing import TYPE_CHECKING

from hybridengine._core import InternalError, TimeoutError, TransportError, UsageError
from hybridengine.comm import Communicator
from hybridengine.layouts.layout import Layout, LayoutRule
from hybridengine.layouts.planning import plan
from hybridengine.layouts.spec import Spec
from hybridengine.lazy import lazy_names
from hybridengine.mapping import Mapping, ModelConfig
from hybridengine.resharding.report import Report

if TYPE_CHECKING:
    from hybridengine.collective.collectives import (
        all_gather,
        all_reduce,
        barrier,
        broadcast,
        ddp_hook,
        reduce_scatter,
    )
    from hybridengine.collective.gradients import GradientReducer
    from hybridengine.collective.masked import MaskedResult, masked_all_reduce
    from hybridengine.collective.statistics import MeanVar, block_scores, masked_mean_var
    from hybridengine.resharding.fresh import empty
    from hybridengine.resharding.resharder import Resharder, reshard
    from hybridengine.turns import Work
    from hybridengine.two_step.two_step import TwoStep

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

__getattr__ = lazy_names(
    __name__,
    {  # what needs torch, or is not needed by the command line
        "GradientReducer": "collective.gradients",
        "MaskedResult": "collective.masked",
        "MeanVar": "collective.statistics",
        "Resharder": "resharding.resharder",
        "TwoStep": "two_step.two_step",
        "Work": "turns",
        "all_gather": "collective.collectives",
        "all_reduce": "collective.collectives",
        "barrier": "collective.collectives",
        "block_scores": "collective.statistics",
        "broadcast": "collective.collectives",
        "ddp_hook": "collective.collectives",
        "empty": "resharding.fresh",
        "masked_all_reduce": "collective.masked",
        "masked_mean_var": "collective.statistics",
        "reduce_scatter": "collective.collectives",
        "reshard": "resharding.resharder",
    },
)
