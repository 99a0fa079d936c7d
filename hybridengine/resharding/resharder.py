"""reshard: from one layout to another, moving only the bytes that each rank lacks.

A Resharder agrees and plans once and runs as often as weights change; reshard() is one run of one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hybridengine.tensors as memory
from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.agreement import agree
from hybridengine.comm import Communicator
from hybridengine.layouts.held import Held, Writable
from hybridengine.layouts.planning import DEFAULT_BUCKET_BYTES, LayoutLike
from hybridengine.options import callable_
from hybridengine.resharding.agree import Part, Statement, check_roles, gather, same_everywhere
from hybridengine.resharding.arguments import communicator_for, read_arguments
from hybridengine.resharding.binding import bind
from hybridengine.resharding.fit import in_order
from hybridengine.resharding.fresh import FreshTensors
from hybridengine.resharding.origin import Origin
from hybridengine.resharding.replicas import check_replicas
from hybridengine.resharding.report import Report
from hybridengine.resharding.stream import Stream
from hybridengine.resharding.views import find_views
from hybridengine.wording import counted


class Resharder:
    """Moves a model's weights from layout `src` to layout `dst`, again and again.

    Making one is collective: all ranks of the communicator take part, also those of neither layout.
    It keeps `model`'s tensors (and `out`) and reads what they hold anew at each run; a model that
    has other tensors by then needs another Resharder, and a run says so.
    """

    def __init__(
        self,
        model: Any,
        src: LayoutLike,
        dst: LayoutLike,
        *,
        comm: Communicator | None = None,
        out: Mapping[str, Any] | None = None,
        dtype: Any = None,
        bucket_bytes: int | str = DEFAULT_BUCKET_BYTES,
        transport: str = "auto",
        verify: bool = False,
        timeout: float | None = None,
        alias: bool = False,
        partial: bool = False,
        buffers: bool = False,
    ) -> None:
        """As reshard(). `partial=True` moves only what `out=` names and the model has; every rank
        of `dst` passes it, and the report counts both."""
        self.comm = communicator_for(comm, transport)
        self.verify, self.alias = verify, alias
        self._report: Report | Callable[[], Report] | None = None
        self._stream: Stream | None = None
        with self.comm.between_calls():
            mine = read_arguments(
                src,
                dst,
                model,
                out,
                dtype=dtype,
                bucket_bytes=bucket_bytes,
                timeout=timeout,
                verify=verify,
                alias=alias,
                partial=partial,
                buffers=buffers,
            )
            statements = gather(self.comm, mine.statement)
            rules, held = (mine.src, mine.dst), mine.held
            with self.comm.agreed():
                check_roles(statements, tuple(mine.src.ranks), tuple(mine.dst.ranks))
            parts: list[Part] = []
            error = ""
            try:
                kind = memory.parse_dtype(dtype)
                self.src, self.dst = bind(*rules, statements, kind, partial=partial, parts=parts)
                self.spec = self.src.spec
                self._plan(mine.bucket_bytes, parts)
                self._take_memory(held, mine.out, partial)
            except UsageError as fault:
                error = str(fault)
            same_everywhere(self.comm, error, parts)
        self.timeout = mine.timeout
        self._origin = None if held is None else Origin(model, held)
        self._prepare(statements)

    def _prepare(self, statements: list[Statement]) -> None:
        """What every run needs, from what all ranks agreed on."""
        self._streamable = all(each.out is None for each in statements)
        names = statements[0].options["dst_names"]
        kept = names == "kept" or (names == "plain" and self.spec.config is None)
        self._aliases = self.spec.aliases if kept else []
        self._names = [name for name, _, _ in self.dst.locals(self.comm.rank)]
        self._aliased = [i for i, name in enumerate(self._names) if name in self._views]
        if self._targets is not None:
            self._aliased = []
        bounds = {row["rank"]: row["bound_bytes"] for row in self.plan.certificate.ranks}
        self._bound_bytes = bounds.get(self.comm.rank, 0)
        self._written = None if self._targets is None else self._by_name(self._targets)
        self._fresh = FreshTensors(self.dst, self.comm)
        self._routine = _core.Routine(
            self.schedule,
            plan=self.schedule.digest(),
            verify=self.verify,
            readable=[rank for rank, each in enumerate(statements) if each.contiguous],
        )
        self._small = self._agree_on_small()
        self._dump_program()
        self._runs = 0
        self._huge_pages: Any = None
        lowest = statements[min(self.src.ranks)]
        self._counts = (len(lowest.rows or []), len(self.spec.tensors))

    def _agree_on_small(self) -> bool:
        """Whether runs after the first, which may be the only one, are one small exchange."""
        if not self.comm.core.page or self.verify or self.src.core.op != "copy":
            return False
        mine = self._routine.shown_bytes
        most = agree(self.comm, lambda: {"bytes": mine}, lambda all_: max(a["bytes"] for a in all_))
        return bool(most <= _core.SHOWN_BYTES)

    def _dump_program(self) -> None:
        folder = _core.env_dump()
        if folder:
            targets = self._fresh.make() if self._targets is None else self._targets
            with self._naming(targets):
                program = self._routine.program(self._sources, targets)
            (Path(folder) / f"program.{self.comm.rank}.txt").write_text(program)

    def _plan(self, bucket_bytes: int, parts: list[Part]) -> None:
        self.plan = _core.make_plan(self.src.core, self.dst.core)
        self.schedule = _core.make_schedule(self.plan, self.comm.rank, bucket_bytes)
        words = f"{bucket_bytes} bytes a bucket"
        parts.append(Part("schedule", self.schedule.digest(), lambda: f"{self.plan}{words}"))
        if _core.env_check():
            self.plan.check()
            self.schedule.check()
        _dump(self.comm.rank, self.plan, self.schedule)

    def _take_memory(self, held: Held | None, out: Writable | None, partial: bool) -> None:
        """Puts the tensors into layout order. Throws UsageError on one that does not fit."""
        self._sources: list[Any] = []
        self._targets: list[Any] | None = None
        self._views: dict[str, Any] = {}
        road = f"{self.src.text} -> {self.dst.text}"
        aliases, dst = self.spec.aliases, self.dst.text
        put = functools.partial(in_order, aliases=aliases, partial=partial, road=road, dst=dst)
        rank = self.comm.rank
        if held is not None:
            given = held.tensors | {alias: held.tensors[name] for alias, name in held.aliases}
            self._sources = put(self.src, rank, given, held.placements, side="model")
        if out is not None:
            self._targets = put(self.dst, rank, out.tensors, out.placements, side="out")
            stored = {name for name, _, _ in self.dst.locals(rank)}
            tied = [(alias, name) for alias, name in self.spec.aliases if alias not in stored]
            memory.check_apart(out.tensors, held.tensors if held is not None else {}, tied)
        if self.alias and self.src.core.op != "copy":
            raise UsageError(
                f"views of {self.src.text} would show contributions, not their {self.src.core.op}. "
                "Leave alias out."
            )
        if self.alias:
            self._views = find_views(self.src, self.dst, self.comm.rank, self._sources)

    def run(self) -> dict[str, Any]:
        """Moves the weights as they are now. Returns this rank's destination tensors by the names
        of the destination: fresh memory, or `out`'s tensors, or views (`alias=True`).

        Throws TransportError or TimeoutError where a rank fails; the destination is then undefined
        and the communicator dead.
        """
        self._check_sources()
        self._runs += 1
        pages = self._huge_pages
        if pages is not None:
            pages.pause()
        try:
            targets, report = self._move()
        finally:
            if pages is not None:
                pages.resume()
        self._set_report(report, self._aliased)
        if self._runs == 2:
            self._use_huge_pages()
        return self._by_name(targets) if self._written is None else self._written.copy()

    def _move(self) -> tuple[list[Any], Any]:
        """The destination's tensors, and the core's report of one run."""
        with self.comm.turns:
            return _core.run(
                self.comm.core,
                self.comm.timeout if self.timeout is None else self.timeout,
                self._routine,
                self._sources,
                self._make_targets if self._targets is None else self._targets,
                self._aliased,
                self._small and self._runs > 1,
                self._refuse,
            )

    def _make_targets(self) -> list[Any]:
        """Fresh ones, and views in place of those that are."""
        targets = self._fresh.make(shared=not (self._small and self._runs > 1))
        for i in self._aliased:
            targets[i] = self._views[self._names[i]]
        return targets

    @property
    def report(self) -> Report | None:
        """Of the last run; None before the first. Built when it is asked for."""
        if callable(self._report):
            self._report = self._report()
        return self._report

    def __repr__(self) -> str:
        what = f"{self.src.text!r} -> {self.dst.text!r}, {counted(self._counts[1], 'tensor')}"
        return f"Resharder({what}, rank {self.comm.rank} of {self.comm.world}, run {self._runs} x)"

    def _check_sources(self) -> None:
        """Before a run: that this rank's tensors are those of the constructor, and with `verify`
        that replicas agree."""
        try:
            if self._origin is not None:
                self._origin.check()
        except BaseException:
            with self.comm.between_calls():
                raise
        if self.verify:
            check_replicas(self.comm, self.src, self._sources)

    def _refuse(self, targets: list[Any]) -> None:
        """The core knows memory and no names: says which tensor changed, or has none any more."""
        if self._origin is not None:
            self._origin.compare()
        sources = [name for name, _, _ in self.src.locals(self.comm.rank)]
        memory.check_readable(dict(zip(sources, self._sources, strict=False)))
        memory.check_readable(dict(zip(self._names, targets, strict=False)))

    @contextmanager
    def _naming(self, targets: list[Any]) -> Iterator[None]:
        try:
            yield
        except UsageError:
            self._refuse(targets)
            raise

    def _use_huge_pages(self) -> None:
        """After the second run: what is read where it lies is then read at full speed some time
        later. Not after the first, for it may have been the only one."""
        report = self.report
        assert report is not None
        tensors = self._sources if report.read_buckets else []
        if report.pulled_buckets:
            tensors = tensors + (self._targets or [])
        if tensors:
            self._huge_pages = _core.HugePages(tensors)

    def stream(self, on_tensor: Callable[[str, Any], None]) -> None:
        """Moves the weights and hands each finished destination tensor to `on_tensor(name, tensor)`
        on this rank, in plan order, without holding them: memory stays within three buckets and
        the largest local tensor. The tensor is the callee's.

        What `on_tensor` raises goes to the caller here and reaches every other rank as a
        TransportError that quotes it.
        """
        callable_("on_tensor", on_tensor)
        if not self._streamable:
            raise UsageError(
                "stream() hands tensors over instead of writing into out. Leave out= out of this "
                "Resharder, or use run()."
            )
        if self.src.core.op != "copy":
            raise UsageError(f"{self.src.text} cannot be streamed. Use run().")
        if self._stream is None:
            self._stream = Stream(
                self.plan, self.schedule, self.comm.rank, self.dst, verify=self.verify
            )
        self._check_sources()
        with self.comm.call(self.timeout):
            with self._naming([]):
                run = _core.Run(self.comm.core, self._stream.routine, self._sources, [], [])
            self._stream.hand_over(run, self._aliases, on_tensor)
        self._set_report(run.report, [])

    def _by_name(self, targets: list[Any]) -> dict[str, Any]:
        """Destination tensors, in layout order, by their names and those of tied tensors."""
        result = dict(zip(self._names, targets, strict=True))
        for alias, name in self._aliases:
            if name in result:
                result[alias] = result[name]
        return result

    def _set_report(self, core: Any, aliased: list[int]) -> None:
        pages, reserve_seconds = self._huge_pages, self._fresh.reserve_seconds
        huge_page_bytes = 0 if pages is None else pages.collapsed_bytes
        huge_page_seconds = 0.0 if pages is None else pages.seconds
        # Not `self`, which would hold itself by its report, and its memory until a collection.
        comm, names, bound_bytes, counts = self.comm, self._names, self._bound_bytes, self._counts
        self._report = lambda: Report.from_core(
            core.to_dict(),
            rank=comm.rank,
            transport=comm.transport,
            bound_bytes=bound_bytes,
            tensors_sent=counts[0],
            tensors_applied=counts[1],
            aliased=[names[i] for i in aliased],
            reserve_seconds=reserve_seconds,
            huge_page_bytes=huge_page_bytes,
            huge_page_seconds=huge_page_seconds,
        )


def reshard(
    model: Any,
    src: LayoutLike,
    dst: LayoutLike,
    *,
    comm: Communicator | None = None,
    out: Mapping[str, Any] | None = None,
    dtype: Any = None,
    bucket_bytes: int | str = DEFAULT_BUCKET_BYTES,
    transport: str = "auto",
    verify: bool = False,
    timeout: float | None = None,
    alias: bool = False,
    buffers: bool = False,
) -> dict[str, Any]:
    """Moves a model's weights from layout `src` to layout `dst` and returns the destination's
    local tensors by the destination's names ({} on a rank outside of dst).

    Collective over `comm` (default: the default torch.distributed group); ranks of layouts are
    ranks of it. `model`: a module (DTensors too) or a dict of local tensors; None on ranks outside
    of `src`. `src`, `dst`: a string such as 'fsdp2(8)' or 'vllm(tp=4,dp=2)@0-7', a LayoutRule, or
    a Layout. `out`: tensors to write into, by destination name; padding in them stays as it is.
    `dtype`: converts floating tensors on the way (round to nearest even). `bucket_bytes`: size of
    a fusion buffer, a number or a text such as '32M'; results do not depend on it. `transport`:
    "auto" or a name. `verify`: compares a digest of every bucket at both ends. `timeout`: seconds
    without progress. `alias`: destination tensors that lie whole in a source tensor of this rank
    are views of it. `buffers`: also those buffers of a module that are not persistent, which its
    state_dict() leaves out.

    Throws UsageError (on every rank, before anything is written) on arguments or tensors that do
    not fit, TransportError where a rank died or failed, TimeoutError where one does not answer.
    """
    resharder = Resharder(
        model,
        src,
        dst,
        comm=comm,
        out=out,
        dtype=dtype,
        bucket_bytes=bucket_bytes,
        transport=transport,
        verify=verify,
        timeout=timeout,
        alias=alias,
        buffers=buffers,
    )
    return resharder.run()


def _dump(rank: int, plan: Any, schedule: Any) -> None:
    """Prints the plan, which is everyone's, and this rank's schedule into the folder of
    HYBRIDENGINE_DUMP; its program follows once the tensors are known."""
    folder = _core.env_dump()
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    if rank == 0:
        (Path(folder) / "plan.txt").write_text(str(plan))
    (Path(folder) / f"schedule.{rank}.txt").write_text(str(schedule))
