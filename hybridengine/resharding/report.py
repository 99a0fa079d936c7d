"""Report: what one run of a reshard did on this rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, repr=False)
class Report:
    """Bytes are payload as it travelled; seconds are of this rank."""

    rank: int
    transport: str
    seconds: float
    wait_seconds: float  # of them waiting for peers
    pack_seconds: float  # reading sources into buckets
    unpack_seconds: float  # writing buckets to their places
    local_seconds: float  # moves that stay on this rank
    bound_bytes: int  # what had to arrive at least
    received_bytes: int
    sent_bytes: int
    local_bytes: int
    staging_bytes: int  # memory beyond source and destination
    buckets_in: int
    buckets_out: int
    direct_buckets: int  # of buckets_in: put by the source, not through staging
    pulled_buckets: int  # of buckets_in: read where they lay
    shown_buckets: int  # of direct_buckets: small enough for one exchange of all ranks
    read_buckets: int  # of buckets_out: read by their destination where they lay
    verified_buckets: int  # whose digest was compared, with verify=True
    pairs: list[tuple[int, int, int]]  # (peer, received bytes, sent bytes)
    tensors_sent: int  # source tensors of the model
    tensors_applied: int  # of them that have a destination
    reserve_seconds: float = 0.0  # reserving memory for results, before `seconds`
    huge_page_bytes: int = 0  # of what is read at every run, in huge pages by now
    huge_page_seconds: float = 0.0  # that it took so far
    aliased: list[str] = field(default_factory=list)  # destination tensors that are views

    @property
    def received_over_bound(self) -> float:
        """1.0 when exactly the missing bytes came."""
        if self.bound_bytes == 0:
            return 1.0 if self.received_bytes == 0 else float("inf")
        return self.received_bytes / self.bound_bytes

    @property
    def gigabytes_per_second(self) -> float:
        """Received and local bytes over seconds, in 1e9 bytes."""
        moved = self.received_bytes + self.local_bytes
        return moved / self.seconds / 1e9 if self.seconds > 0 else 0.0

    def __repr__(self) -> str:
        return (
            f"Report(rank {self.rank}, {self.transport}, {self.seconds:.4f} s: received "
            f"{self.received_bytes} of {self.bound_bytes} bytes bound, sent {self.sent_bytes}, "
            f"local {self.local_bytes}, staging {self.staging_bytes})"
        )

    @staticmethod
    def from_core(core: dict[str, Any], **facts: Any) -> Report:
        return Report(**core, **facts)
