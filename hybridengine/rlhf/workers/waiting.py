"""waiting: until all ranks have answered a call, or one of any pool has failed.

Besides the answers it watches the ends of all processes of the cluster, so that a death is seen at
once wherever it happens, and asks ranks that are late whether they get on.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from hybridengine.rlhf.workers.cluster import Cluster
from hybridengine.rlhf.workers.failure import DIED, ECHO, LAST_WORDS_S, ORIGIN_S, RAISED, Failure
from hybridengine.rlhf.workers.members import Members
from hybridengine.rlhf.workers.rank import Running

# A rank that computes answers within some milliseconds; one that swaps may take a while.
_ANSWER_S = 5.0


@dataclass(frozen=True)
class Call:
    """A method that all ranks of a pool were sent; `refs` of their answers, by rank.

    `role` is empty for what ranks do before they have one. `timeout_s`: without progress.
    """

    cluster: Cluster
    pool: Members
    role: str
    method: str
    refs: list[Any]
    timeout_s: float


def wait_for(call: Call) -> list[Any]:
    """What the ranks returned, by rank. On a failure ends all pools and raises it."""
    call.pool.check()
    return _Wait(call).results()


@dataclass(frozen=True)
class _Fault:
    """A failure and where it was."""

    failure: Failure
    pool: Members
    rank: int
    role: str


class _Wait:
    def __init__(self, call: Call) -> None:
        self._call = call
        self._cluster = call.cluster
        self._answers = {ref: rank for rank, ref in enumerate(call.refs)}  # not here yet
        self._ends = {
            ref: (pool, rank) for pool in self._cluster.pools for rank, ref in enumerate(pool.ends)
        }
        self._results: dict[int, Any] = {}
        self._failures: list[_Fault] = []
        self._deadline = time.monotonic() + call.timeout_s

    def results(self) -> list[Any]:
        while self._answers:
            left_s = max(0.0, self._deadline - time.monotonic())
            awaited = [*self._answers, *self._ends]
            ready, _ = ray.wait(awaited, num_returns=1, timeout=left_s)
            for ref in ready:
                self._take(ref)
            if not ready and not self._failures:
                self._ask_late_ranks()
            elif not ready or self._cause_is_known():
                break
        if self._failures:
            self._raise()
        return [self._results[rank] for rank in range(len(self._results))]

    def _take(self, ref: Any) -> None:
        """An answer, or the end of a process."""
        if ref in self._ends:
            pool, rank = self._ends.pop(ref)
            self._fail(Failure(_death(ref), DIED), pool, rank)
            return
        rank = self._answers.pop(ref)
        try:
            outcome = ray.get(ref)
        except RayActorError:
            outcome = Failure(_death(ref), DIED)
        except RayTaskError as error:  # arguments or results that do not travel
            outcome = Failure.of(error.cause, self._call.method, trace=str(error))
        if isinstance(outcome, Failure):
            self._fail(outcome, self._call.pool, rank)
        else:
            self._results[rank] = outcome.value

    def _fail(self, failure: Failure, pool: Members, rank: int) -> None:
        role = self._call.role if pool is self._call.pool else ", ".join(pool.roles)
        self._failures.append(_Fault(failure, pool, rank, role))
        nearest = min(place.failure.distance for place in self._failures)
        wait_s = ORIGIN_S if nearest == ECHO else LAST_WORDS_S
        if len(self._failures) == 1 or nearest != ECHO:
            self._deadline = min(self._deadline, time.monotonic() + wait_s)

    def _cause_is_known(self) -> bool:
        return any(place.failure.distance == DIED for place in self._failures)

    def _raise(self) -> None:
        first = min(self._failures, key=lambda place: (place.failure.distance, place.failure.at))
        host = first.pool.hosts[first.rank]
        error = first.failure.exception(first.role, first.pool.name, first.rank, host)
        self._cluster.fail(error)

    def _ask_late_ranks(self) -> None:
        """Time is up: ranks that made no progress have failed, unless they wait for one that did;
        the others get what they are due."""
        pool, limit_s = self._call.pool, self._call.timeout_s
        late = list(self._answers.values())
        states = _states(pool, late, min(_ANSWER_S, limit_s))
        idle_s = [state.idle_s for state in states.values() if state and state.idle_s < limit_s]
        for rank, state in states.items():
            if state is None:
                cause = f"does not answer for {limit_s:g} s in {self._call.method}"
                self._fail(Failure(cause, DIED), pool, rank)
            elif state.idle_s >= limit_s and not (idle_s and state.in_collective):
                cause = (
                    f"made no progress for {state.idle_s:.1f} s in {self._call.method} "
                    f"({state.place})"
                )
                self._fail(Failure(cause, ECHO if state.in_collective else RAISED), pool, rank)
        if not self._failures:
            self._deadline = time.monotonic() + limit_s - max(idle_s, default=0.0)


def _states(pool: Members, ranks: list[int], limit_s: float) -> dict[int, Running | None]:
    """What each rank does; None where it does not answer within `limit_s`."""
    asked = {rank: pool.watch(rank, "state") for rank in ranks}
    answered, _ = ray.wait(list(asked.values()), num_returns=len(ranks), timeout=limit_s)
    return {rank: _state(ref) if ref in answered else None for rank, ref in asked.items()}


def _state(ref: Any) -> Running | None:
    try:
        state: Running = ray.get(ref)
    except RayActorError:
        return None
    return state


def _death(ref: Any) -> str:
    """How the process behind `ref` ended, in one line."""
    try:
        ray.get(ref)
    except RayActorError as error:
        text = str(error).strip()
        detail = re.search(r"Worker exit detail: (.*?)\.? (?:Some common causes|$)", text)
        return f"died (Ray: {detail[1] if detail else text.splitlines()[-1]})"
    return "ended"
