"""group: a role on all ranks of a pool, as the controller calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hybridengine._core import UsageError
from hybridengine.rlhf.workers.cluster import Cluster
from hybridengine.rlhf.workers.cutting import with_parts
from hybridengine.rlhf.workers.members import Members
from hybridengine.rlhf.workers.reference import Reference
from hybridengine.rlhf.workers.role import Dispatch, Role, dispatched_methods
from hybridengine.rlhf.workers.waiting import Call, wait_for


class Pending:
    """A call that was sent to all ranks. `values`: Ray's references to what those that answer keep,
    by their rank."""

    def __init__(self, call: Call, dispatch: Dispatch, values: dict[int, Any]) -> None:
        self._call, self._dispatch, self._values = call, dispatch, values
        self._results: list[Any] | None = None

    @property
    def refs(self) -> list[Any]:
        """Ray's references to the ranks' answers, for ray.wait."""
        return list(self._call.refs)

    @property
    def references(self) -> list[Reference]:
        """What a method that returns by reference will have returned, without summaries:
        to be passed on to the next call before this one has ended. result() of this one comes
        first then, so that a failure is seen where it was."""
        pool = self._call.pool.name
        return [Reference(value, None, rank, pool) for rank, value in self._values.items()]

    def result(self) -> Any:
        """What the call gives back, as `dispatch(collect=...)` says. Blocks until every rank has
        returned, also where the result of one is asked for. Throws UsageError that a rank raised,
        WorkerError on any other failure of any rank of the cluster; all pools are ended then."""
        if self._results is None:
            found = wait_for(self._call)
            self._results = [found[rank] for rank in self._values]
            if self._dispatch.returns == "reference":
                self._results = [
                    replace(reference, summary=summary)
                    for reference, summary in zip(self.references, self._results, strict=True)
                ]
        return _collected(self._results, self._dispatch.collect)


@dataclass(frozen=True)
class GroupMethod:
    """A method of a group: called, it blocks; `remote` returns at once."""

    cluster: Cluster
    pool: Members
    role: str
    name: str
    dispatch: Dispatch
    place_size: int

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.remote(*args, **kwargs).result()

    def remote(self, *args: Any, **kwargs: Any) -> Pending:
        """Methods of one pool run in the order in which they were sent."""
        self.pool.check()
        parts = self._arguments(args)
        with sending(f"the arguments of {self.role}.{self.name}"):
            sent = [
                self._send(process, part, kwargs)
                for process, part in zip(self.pool.processes, parts, strict=True)
            ]
        call = Call(
            self.cluster,
            self.pool,
            self.role,
            self.name,
            refs=[answer for answer, _ in sent],
            timeout_s=self.cluster.config.timeout_s,
        )
        by_place = self.dispatch.mode == "by_place"
        answering = range(0, self.pool.num_ranks, self.place_size if by_place else 1)
        return Pending(call, self.dispatch, {rank: sent[rank][1] for rank in answering})

    def _send(self, process: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Refs of the answer, and of the value where it stays there."""
        sent = (self.role, self.name, args, kwargs)
        if self.dispatch.returns == "value":
            return process.call.remote(*sent), None
        value, answer = process.call_by_reference.options(num_returns=2).remote(*sent)
        return answer, value

    def _arguments(self, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The arguments of each rank."""
        if self.dispatch.mode == "one_to_all":
            return [args] * self.pool.num_ranks
        places = self.pool.num_ranks // self.place_size
        parts = args[0] if args else None
        if not isinstance(parts, (list, tuple)) or len(parts) != places:
            has = len(parts) if isinstance(parts, (list, tuple)) else f"a {type(parts).__name__}"
            raise UsageError(
                f"{self.role}.{self.name} takes one entry for each of the {places} places in pool "
                f"{self.pool.name!r}, not {has}. Pass a list by place as the first argument."
            )
        cut = with_parts(parts, self.cluster.cut)
        return [(part, *args[1:]) for part in cut for _ in range(self.place_size)]


class WorkerGroup:
    """A role on all ranks of a pool, every `place_size` of which have the same rows. It has the
    role's decorated methods: `group.update(shards)` blocks and returns what they collect,
    `group.update.remote(shards)` returns a Pending."""

    def __init__(
        self, cluster: Cluster, pool: Members, name: str, role: type[Role], place_size: int
    ) -> None:
        self.cluster, self.pool, self.name = cluster, pool, name
        self.num_places = pool.num_ranks // place_size
        self._methods = {
            method: GroupMethod(cluster, pool, name, method, dispatch, place_size)
            for method, dispatch in dispatched_methods(role).items()
        }

    def __getattr__(self, name: str) -> GroupMethod:
        methods = self.__dict__.get("_methods", {})
        if name not in methods:
            raise AttributeError(
                f"role {self.__dict__.get('name')!r} has no dispatched method {name!r}: it has "
                f"{', '.join(sorted(methods))}."
            )
        method: GroupMethod = methods[name]
        return method


@contextmanager
def sending(what: str) -> Iterator[None]:
    """Makes Ray's report of what cannot be pickled a UsageError."""
    try:
        yield
    except TypeError as error:
        if "serialize" not in str(error):
            raise
        raise UsageError(
            f"{what} cannot be sent to the ranks: {error.__cause__ or error}. Use plain values, "
            f"and classes of a module rather than of the script that is run."
        ) from error


def _collected(results: list[Any], collect: str) -> Any:
    if collect == "first":
        return results[0]
    if collect == "last":
        return results[-1]
    return results if collect == "all" else None
