"""What a link costs, as measured by `hybridengine bench all_reduce --sweep bucket`."""

from __future__ import annotations

DEFAULT_BUCKET_BYTES = 4 << 20


def pick_bucket(transport: str, world: int) -> int:
    """The bucket size for collectives over `transport` between `world` ranks."""
    return DEFAULT_BUCKET_BYTES
