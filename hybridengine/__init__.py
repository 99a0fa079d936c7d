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
    from hybridengine.fresh import empty
    from hybridengine.resharder import Resharder, reshard
    from hybridengine.two_step import TwoStep

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
    "TwoStep",
    "UsageError",
    "empty",
    "plan",
    "reshard",
]

_NEED_TORCH = {
    "Resharder": "resharder",
    "TwoStep": "two_step",
    "empty": "fresh",
    "reshard": "resharder",
}


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = getattr(import_module(f"hybridengine.{_NEED_TORCH[name]}"), name)
    return globals()[name]
