"""Runs a function on every rank of a small world, over any transport.

Ranks are processes where the transport reaches them, threads of this process otherwise. A scenario
is a module-level function `scenario(me, *args)`; what it returns is the rank's result. `me.link` is
a pipe to the test, for scenarios that need a word in between.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from ranks import context

from hybridengine import _core

CONNECT_TIMEOUT_S = 30.0
BLOB, ADDRESSES, READY, GRANTED, LANDED, RELEASED, FAILED, BYE = range(8)  # kinds of messages


class Me:
    """What a scenario has in hand: this rank, its connected endpoint and what has arrived."""

    def __init__(self, endpoint: Any, rank: int, world: int, link: Connection) -> None:
        self.endpoint, self.rank, self.world, self.link = endpoint, rank, world, link
        self.peers = [peer for peer in range(world) if peer != rank]
        self.waiting: list[tuple] = []
        self.regions: dict[int, int] = {}  # by peer: the one that it showed last

    def next(self, timeout_s: float = 20.0) -> tuple:
        until = time.monotonic() + timeout_s
        while not self.waiting:
            left = until - time.monotonic()
            if left <= 0:
                raise AssertionError(f"rank {self.rank}: nothing arrived within {timeout_s} s")
            self.waiting = self.endpoint.poll(left)
        return self.waiting.pop(0)

    def next_from(self, peer: int, timeout_s: float = 20.0) -> tuple:
        """The next message of `peer`; those of others stay."""
        held = []
        while (arrival := self.next(timeout_s))[1] != peer:
            held.append(arrival)
        self.waiting = held + self.waiting
        assert arrival[0] == "message", arrival
        return arrival

    def finish(self, peer: int, ticket: int) -> None:
        """Returns once a put to `peer` is done: until then its buffers are in use."""
        held = []
        while ticket and (arrival := self.next())[0] != "done":
            held.append(arrival)
        assert not ticket or arrival == ("done", peer, ticket)
        self.waiting = held + self.waiting

    def flush(self) -> None:
        """Returns once nothing waits here to be sent."""
        while not self.endpoint.sent_all:
            self.waiting += self.endpoint.poll(0.05)

    def meet(self) -> None:
        """Returns once every peer has called it too."""
        for peer in self.peers:
            self.endpoint.send(peer, RELEASED)
        for peer in self.peers:
            assert self.next_from(peer)[2] == RELEASED

    def show(self, region: Any) -> None:
        """Offers `region` (or nothing) to every peer; returns once all have shown theirs."""
        for peer in self.peers:
            if region is not None:
                self.endpoint.offer(peer, region)
            self.endpoint.send(peer, RELEASED, value=0 if region is None else region.id)
        for peer in self.peers:
            arrival = self.next_from(peer)
            assert arrival[2] == RELEASED
            self.regions[peer] = arrival[6]

    def window(self, peer: int) -> memoryview:
        """What `peer` showed last."""
        return memoryview(self.endpoint.map(peer, self.regions[peer]))


def rank_main(
    transport: str,
    rank: int,
    world: int,
    group: str,
    link: Connection,
    scenario: Callable[..., Any],
    args: Sequence[Any],
) -> None:
    try:
        endpoint = _core.Fabric.make(transport, rank, world, group)
        link.send(("address", endpoint.address()))
        endpoint.connect(link.recv(), CONNECT_TIMEOUT_S)
        link.send(("result", scenario(Me(endpoint, rank, world, link), *args)))
        link.recv()  # stays connected until every rank has a result
        endpoint.close()
    except (EOFError, BrokenPipeError):
        pass  # the test has gone
    except BaseException:
        link.send(("raised", f"rank {rank}: {traceback.format_exc()}"))


class Ranks:
    """The ranks of one run. Leave the `with` block to end them."""

    def __init__(self, transport: str, world: int, scenario: Callable, args: Sequence = ()) -> None:
        self.processes = caps_of(transport)["processes"]
        pipe, make = (
            (context.Pipe, context.Process)
            if self.processes
            else (multiprocessing.Pipe, threading.Thread)
        )
        group = uuid.uuid4().hex
        self.links: list[Connection] = []
        self.runners: list[Any] = []
        for rank in range(world):
            link, theirs = pipe()
            runner = make(
                target=rank_main,
                args=(transport, rank, world, group, theirs, scenario, args),
                daemon=True,
            )
            runner.start()
            if self.processes:
                theirs.close()
            self.links.append(link)
            self.runners.append(runner)
        self.addresses = [self.receive(rank, "address") for rank in range(world)]
        for link in self.links:
            link.send(self.addresses)

    def receive(self, rank: int, kind: str, timeout_s: float = 60.0) -> Any:
        if not self.links[rank].poll(timeout_s):
            raise AssertionError(f"rank {rank} gave no {kind} within {timeout_s} s")
        got, value = self.links[rank].recv()
        if got != kind:
            raise AssertionError(f"wanted a {kind}, got {got}: {value}")
        return value

    def results(self) -> list[Any]:
        return [self.receive(rank, "result") for rank in range(len(self.links))]

    def signal(self, rank: int, number: signal.Signals) -> int:
        pid = self.runners[rank].pid
        os.kill(pid, number)
        return pid

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind, value, trace) -> None:
        for link in self.links:
            try:
                link.send("end")
            except OSError:
                continue
        for runner in self.runners:
            runner.join(10)
            if runner.is_alive() and self.processes:
                runner.kill()
                runner.join()
        for link in self.links:
            link.close()


def caps_of(transport: str) -> dict[str, bool]:
    return next(row["caps"] for row in _core.transports() if row["name"] == transport)


def run_ranks(transport: str, world: int, scenario: Callable, *args: Any) -> list[Any]:
    with Ranks(transport, world, scenario, args) as ranks:
        return ranks.results()
