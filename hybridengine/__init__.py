"""Moves exactly the weight bytes that each rank lacks, from one sharding to another."""

from hybridengine._core import InternalError, TimeoutError, TransportError, UsageError
from hybridengine.comm import Communicator
from hybridengine.layout import Layout, LayoutRule
from hybridengine.mapping import Mapping, ModelConfig
from hybridengine.report import Report
from hybridengine.reshard import Resharder, plan, reshard
from hybridengine.spec import Spec

__all__ = [
    "Communicator",
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
    "plan",
    "reshard",
]
