"""members: what a cluster, its calls and its groups know of a pool.

Pools are made of clusters, calls and groups, and so lie above them; this is what those below see.
"""

from __future__ import annotations

from typing import Any, Protocol

from hybridengine.rlhf.workers.reference import Reference


class Members(Protocol):
    """The ranks of a pool. See Pool for what the methods do."""

    name: str
    num_ranks: int
    hosts: list[str]  # by rank
    roles: list[str]
    processes: list[Any]  # Ray's handles, by rank
    ends: list[Any]  # Ray's references that are there when a process is not any more

    def check(self) -> None: ...

    def watch(self, rank: int, method: str) -> Any: ...

    def cut(self, piece: Reference, parts: list[list[int]]) -> list[Any]: ...

    def close(self, failure: Exception | None = None) -> None: ...
