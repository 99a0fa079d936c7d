"""What the processes of test_fabric.py do. Apart from it so that they need no pytest."""

from __future__ import annotations

from transport_scenarios import connect_all

from hybridengine import _core

NAMES = "loopback,shm"


def host_two_ranks(first: int, link) -> None:
    """Ranks `first` and `first + 1` of four, as threads of this process."""
    ends = [_core.Fabric.make(NAMES, rank, 4, "mixed") for rank in (first, first + 1)]
    link.send([end.address() for end in ends])
    errors = connect_all(ends, 20.0, link.recv())
    told = []
    for rank, end in zip((first, first + 1), ends, strict=True):
        for peer in range(4):
            if peer != rank:
                told.append((rank, peer, end.medium(peer), end.why_not_better(peer)))
                end.send(peer, 3, bucket=10 * rank + peer)
    heard = []
    for end in ends:
        arrivals = []
        while len(arrivals) < 3:
            arrivals += end.poll(10.0) or [None]
        heard.append(sorted((arrival[1], arrival[3]) for arrival in arrivals))
    caps = ends[0].caps
    link.send((errors, told, heard, {name: caps[name] for name in ("maps", "payload")}))
    link.recv()
