"""memory: how full it is, and training state moved out of the device's.

On a CPU there is nowhere to move to, and nothing is moved.
"""

from __future__ import annotations

import weakref
from pathlib import Path

import torch
from torch import nn

from hybridengine.rlhf.training.optimizer import ShardedAdamW

# Where weights go back to, by module. Weights that `param_offload` keeps on the host never move.
_moved: weakref.WeakKeyDictionary[nn.Module, torch.device] = weakref.WeakKeyDictionary()


def offload(module: nn.Module, optimizer: ShardedAdamW | None = None) -> None:
    """Moves weights and the optimizer's moments to host memory; gradients are dropped.

    No pass may run and no step be taken until `load`.
    """
    if optimizer is not None:
        optimizer.zero_grad()
        optimizer.offload_moments()
    device = next(module.parameters()).device
    if device.type != "cpu":
        module.to("cpu")
        _moved[module] = device
        torch.cuda.empty_cache()


def load(module: nn.Module, optimizer: ShardedAdamW | None = None) -> None:
    """Moves what `offload` took back to where it was."""
    device = _moved.pop(module, None)
    if device is not None:
        module.to(device)
    if optimizer is not None and not optimizer.offload:
        optimizer.load_moments()


def memory_share(device: torch.device) -> float:
    """Between 0 and 1: how much of the device's memory is in use, by anyone; of the host's for a
    CPU."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return 1 - free / total
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    return 1 - kib["MemAvailable"] / kib["MemTotal"]
