"""The flags of benchmarks: nccl-tests' letters with nccl-tests' meanings, ours long-only.

Anything unknown is a UsageError, never a default. One default differs on purpose: `-a` is 3 (the
slowest rank) where nccl-tests has 1, because ranks here do not all have work to the end.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from hybridengine import _core
from hybridengine._bench.help_text import help_text
from hybridengine._bench.index import INDEX
from hybridengine._core import UsageError

if TYPE_CHECKING:
    from hybridengine.collective.collectives import BucketBytes, Op

# nccl-tests' names of element types, and torch's.
DTYPES = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "int64": "int64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
AVERAGES = {0: "of rank 0", 1: "mean over ranks", 2: "fastest rank", 3: "slowest rank"}
# nccl-tests' names of reductions, and ours.
REDOPS: dict[str, Op] = {"sum": "sum", "max": "max", "min": "min", "avg": "mean"}
_NOT_OFFERED = ("prod", "mulsum")
GRANULARITIES = ("row", "element", "tensor")
_DEFAULT_END = 32 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Options:
    """A command line. `rivals` are names; `dtypes` torch's names, empty where none was given."""

    iters: int = 20
    warmup: int = 1
    agg_iters: int | None = None
    check: int = 1
    average: int = 3
    ranks: int | None = None
    json_path: str | None = None
    timeout: float | None = None
    transport: str = "auto"
    min_bytes: int = 32 << 20
    max_bytes: int | None = None
    step_bytes: int = 1 << 20
    step_factor: int = 1
    dtypes: tuple[str, ...] = ()
    model: str | None = None
    src: str | None = None
    dst: str | None = None
    bucket_bytes: int = _core.DEFAULT_BUCKET_BYTES
    rivals: tuple[str, ...] = ()
    tensors: int = 1
    out: str = "torch"
    only: tuple[str, ...] = ()
    redops: tuple[str, ...] = ()
    fusion_bytes: BucketBytes = "auto"
    sweep: str | None = None
    picture: str | None = None
    threshold: float = 0.5
    granularity: str = "row"

    @property
    def end_bytes(self) -> int:
        """-e; without it -b alone is one row above the default."""
        return max(self.min_bytes, _DEFAULT_END) if self.max_bytes is None else self.max_bytes

    def sizes(self) -> list[int]:
        """The sweep from -b to -e. Throws UsageError on one that would not end."""
        if self.end_bytes < self.min_bytes:
            raise UsageError(
                f"the sweep is empty: -b {self.min_bytes}, -e {self.end_bytes}. Give -e at least "
                "as much as -b."
            )
        sizes, size = [], self.min_bytes
        while size <= self.end_bytes:
            sizes.append(size)
            following = size * self.step_factor if self.step_factor > 1 else size + self.step_bytes
            if following <= size and size < self.end_bytes:
                raise UsageError("the sweep never ends. Use -i from 1, or -f from 2 and -b from 1.")
            size = max(following, size + 1)
        return sizes


def size(text: str) -> int:
    """Bytes from '32M' or '33554432'."""
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in _UNITS else (text, "")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 33554432, 512K, 32M or 1G")
    return int(digits) * (_UNITS[unit] if unit else 1)


def whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least}")
        return int(text)

    return parse


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def dtypes(text: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(DTYPES.values())
    if text not in DTYPES:
        raise argparse.ArgumentTypeError(f"{text!r} is no type; use {', '.join(DTYPES)} or all")
    return (DTYPES[text],)


def redops(text: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(REDOPS)
    if text in _NOT_OFFERED:
        raise argparse.ArgumentTypeError(f"{text} is not offered; use {', '.join(REDOPS)} or all")
    if text not in REDOPS:
        raise argparse.ArgumentTypeError(f"{text!r} is no op; use {', '.join(REDOPS)} or all")
    return (text,)


def fusion(text: str) -> BucketBytes:
    if text == "auto":
        return "auto"
    num_bytes = size(text)
    if num_bytes == 0:
        raise argparse.ArgumentTypeError("a bucket of 0 bytes holds nothing; write auto or 32M")
    return num_bytes


def threshold(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no threshold; use a number, inf or -inf")
    return value


_Flag = tuple[tuple[str, ...], dict[str, Any]]


def _flag(*names: str, help: str, shown: str, **how: Any) -> _Flag:
    """`shown` are words for the default."""
    return names, {"help": help, "shown": shown, **how}


_TYPES = f"element type: {', '.join(DTYPES)} or all"

_SHARED: list[_Flag] = [
    _flag("-n", "--iters", type=whole(1), metavar="N", help="timed iterations; the median counts",
          shown="20"),
    _flag("-w", "--warmup_iters", dest="warmup", type=whole(0), metavar="N",
          help="untimed iterations before them", shown="1"),
    _flag("-c", "--check", type=whole(0), metavar="N", help="verification rounds; 0: none",
          shown="1"),
    _flag("-J", "--json", dest="json_path", metavar="FILE",
          help="write the rows to this file; - is stdout", shown="none"),
]  # fmt: skip
_RANKS: list[_Flag] = [
    _flag("-g", "--ngpus", dest="ranks", type=whole(1), metavar="N",
          help="ranks, processes of this host", shown="1"),
    _flag("-t", "--nthreads", dest="threads", choices=["1"], metavar="1", help="threads per rank",
          shown="1"),
    _flag("-m", "--agg_iters", type=whole(1), metavar="N", help="operations per iteration",
          shown="1"),
    _flag("-a", "--average", type=int, choices=[*AVERAGES], metavar="0-3",
          help="time of 0: rank 0, 1: the mean, 2: the fastest, 3: the slowest rank", shown="3"),
    _flag("-T", "--timeout", type=seconds, metavar="SECONDS",
          help="seconds without progress before it fails", shown="HYBRIDENGINE_TIMEOUT_S"),
    _flag("--transport", metavar="NAME", help="auto, or one that `hybridengine info` lists",
          shown="auto"),
]  # fmt: skip
_MODEL_HELP = "a preset, or the directory of a checkpoint"
# Flags that a benchmark takes where its record names the group.
_GROUPS: dict[str, list[_Flag]] = {
    "ranks": _RANKS,
    "sizes": [
        _flag("-b", "--minbytes", dest="min_bytes", type=size, metavar="SIZE",
              help="smallest size, e.g. 64K", shown="32M"),
        _flag("-e", "--maxbytes", dest="max_bytes", type=size, metavar="SIZE", help="largest size",
              shown="32M, or -b"),
        _flag("-i", "--stepbytes", dest="step_bytes", type=size, metavar="SIZE",
              help="add this from size to size", shown="1M"),
        _flag("-f", "--stepfactor", dest="step_factor", type=whole(1), metavar="N",
              help="multiply by this instead, above 1", shown="off"),
    ],
    "dtype": [
        _flag("-d", "--datatype", dest="dtypes", type=dtypes, metavar="TYPE", help=_TYPES,
              shown="float"),
    ],
    "model": [
        _flag("--model", required=True, metavar="MODEL", help=_MODEL_HELP, shown=""),
        _flag("--src", required=True, metavar="LAYOUT", help="layout of the source", shown=""),
        _flag("--dst", required=True, metavar="LAYOUT", help="layout of the destination", shown=""),
    ],
    "move": [
        _flag("--bucket", dest="bucket_bytes", type=size, metavar="SIZE", help="bytes of a bucket",
              shown="32M"),
        _flag("--out", choices=["torch", "ours"], metavar="torch|ours",
              help="whose memory out= is, in place", shown="torch"),
    ],
    "rivals": [
        _flag("--rival", dest="rivals", type=names, metavar="NAMES", help="by name, gloo, or all",
              shown="none"),
    ],
    "redop": [
        _flag("-o", "--op", dest="redops", type=redops, metavar="OP",
              help="sum, max, min, avg or all", shown="sum"),
    ],
    "fusion": [
        _flag("--bucket", dest="fusion_bytes", type=fusion, metavar="SIZE",
              help="bytes of a bucket, or auto", shown="auto"),
    ],
    "sweep": [
        _flag("--sweep", metavar="NAME", help="over something else than sizes; draws it",
              shown="off"),
    ],
    "picture": [
        _flag("--png", dest="picture", metavar="FILE", help="the file to draw into",
              shown="BENCH_SWEEP.png"),
    ],
    "share": [
        _flag("-b", "--minbytes", dest="min_bytes", type=size, metavar="SIZE",
              help="bytes of a rank", shown="32M"),
    ],
    "update": [
        _flag("--model", metavar="MODEL", help=_MODEL_HELP, shown="smollm2-135m"),
        _flag("--dst", metavar="LAYOUT", help="layout for generation",
              shown="vllm, every rank a replica"),
    ],
    "mask": [
        _flag("--threshold", type=threshold, metavar="X",
              help="keep scores from it on; they are 0 to 1", shown="0.5"),
        _flag("--granularity", choices=GRANULARITIES, metavar="|".join(GRANULARITIES),
              help="what has a score", shown="row"),
    ],
    "tensors": [
        _flag("--tensors", type=whole(1), metavar="N", help="split the bytes into so many tensors",
              shown="1"),
    ],
    "only": [
        _flag("--only", type=names, metavar="NAMES", help="names of cases, or their beginnings",
              shown="all"),
    ],
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See hybridengine bench {self.prog.split()[-1]} --help.")

    def format_help(self) -> str:
        return help_text(self)


def parse(name: str, summary: str, groups: tuple[str, ...], arguments: list[str]) -> Options:
    """The options of benchmark `name`, which takes the flags of `groups` beside the shared ones.

    Throws UsageError. `-h` prints the flags and ends with SystemExit(0).
    """
    parser = Parser(
        prog=f"hybridengine bench {name}",
        description=summary,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    defaults = INDEX[name].defaults if name in INDEX else {}
    for flags, how in _SHARED + [each for group in groups for each in _GROUPS[group]]:
        shown = defaults.get(flags[-1], how["shown"])
        words = f"{how['help']} [default: {shown}]" if shown else f"{how['help']} [required]"
        parser.add_argument(*flags, **{**_without_shown(how), "help": words.replace("%", "%%")})
    given = vars(parser.parse_args(arguments))
    given.pop("threads", None)
    return Options(**given)


def _without_shown(how: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in how.items() if key != "shown"}
