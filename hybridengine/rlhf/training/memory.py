"""memory: how full it is, of a device or of the host."""

from __future__ import annotations

from pathlib import Path

import torch


def memory_share(device: torch.device) -> float:
    """Between 0 and 1: how much of the device's memory is in use, by anyone; of the host's for a
    CPU."""
    used, total = _used_and_total(device)
    return used / total


def bytes_below(device: torch.device, share: float) -> int:
    """How many more bytes may be taken until `share` of the memory is in use; 0 if it is."""
    used, total = _used_and_total(device)
    return max(0, int(share * total) - used)


def _used_and_total(device: torch.device) -> tuple[int, int]:
    """In bytes."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free, total
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    return 1024 * (kib["MemTotal"] - kib["MemAvailable"]), 1024 * kib["MemTotal"]
