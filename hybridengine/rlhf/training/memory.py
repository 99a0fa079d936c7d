"""memory: how full it is."""

from __future__ import annotations

from pathlib import Path

import torch


def memory_share(device: torch.device) -> float:
    """Between 0 and 1: how much of the device's memory is in use, by anyone; of the host's for a
    CPU."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return 1 - free / total
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    return 1 - kib["MemAvailable"] / kib["MemTotal"]
