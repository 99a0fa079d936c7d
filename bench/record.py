"""What a benchmark is: a record of five functions, and the plain values between it and the harness.

A *case* is one row of the table. A *job* is a case made ready on one rank: its tensors and whatever
runs on them; dropping it frees everything. A *rival* does the same job by other means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridengine._bench.flags import Options
    from hybridengine._bench.plot import Picture
    from hybridengine._bench.world import World


class Unfit(Exception):
    """A rival cannot do this job; the text says why. The bench goes on without it."""


@dataclass(frozen=True)
class Case:
    """What one row measures. `dtype` has torch's name; `op` and `root` nccl-tests' meaning."""

    size_bytes: int
    dtype: str
    op: str = "none"
    root: int = -1
    label: str = ""
    setting: Any = None  # of a sweep over something else than sizes


@dataclass(frozen=True)
class Volume:
    """What a job moves. `size_bytes` and `count` are the table's first two columns, the same on
    every rank; `bus_factor` turns algbw into busbw; `received_bytes` is what must arrive on this
    rank. `facts` are added to the JSON row."""

    size_bytes: int
    count: int
    bus_factor: float
    received_bytes: int
    facts: dict[str, Any] = field(default_factory=dict)


RivalFactory = Callable[["World", Any], Callable[[], Any]]


@dataclass(frozen=True)
class Column:
    """What one benchmark says besides about its own rows. `text` makes it from one of them."""

    name: str
    unit: str
    text: Callable[[dict[str, Any]], str]


@dataclass(frozen=True)
class Sweep:
    """Rows over something else than sizes. `conclude(options, rows, picture)` runs once, where the
    table is printed: it draws `picture` and returns lines to print."""

    cases: Callable[[Options], list[Case]]
    conclude: Callable[[Options, list[dict[str, Any]], Picture], list[str]]
    halves: tuple[bool, ...]


@dataclass(frozen=True)
class Bench:
    """One benchmark. Everything but `ranks` and `cases` runs on every rank, in step.

    setup(world, options, case, in_place): the job of one half of a row. Collective.
    fill(job, round): fresh sources that follow from `round`, and poison in the destination.
    run(job): does it once and returns what holds the results.
    count_wrong(job, results): elements of this rank that are not what fill() promises.
    volume(job): see Volume.

    `flags` are those of its entry in index.py; `ranks(options)` says how many ranks it needs
    and throws UsageError where the options make no sense. `rivals` make, for a job, a function that
    is run and checked like run(); they throw Unfit.
    """

    name: str
    flags: tuple[str, ...]
    ranks: Callable[[Options], int]
    cases: Callable[[Options], list[Case]]
    setup: Callable[[World, Options, Case, bool], Any]
    fill: Callable[[Any, int], None]
    run: Callable[[Any], Any]
    count_wrong: Callable[[Any, Any], int]
    volume: Callable[[Any], Volume]
    rivals: dict[str, RivalFactory] = field(default_factory=dict)
    halves: tuple[bool, ...] = (False, True)  # in place?
    always: tuple[str, ...] = ()  # rivals that are measured without being asked for
    columns: tuple[Column, ...] = ()
    sweeps: dict[str, Sweep] = field(default_factory=dict)
    repeats_short: bool = False  # an iteration lasts a while; only where every rank waits for all
    travels: bool = True  # over a transport
