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
from hybridengine._core import UsageError

if TYPE_CHECKING:
    from hybridengine.collectives import BucketBytes, Op

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

_SHARED: list[_Flag] = [
    (("-n", "--iters"), {"type": whole(1), "help": "timed iterations; the median counts (20)"}),
    (("-w", "--warmup_iters"), {"dest": "warmup", "type": whole(0), "help": "untimed ones (1)"}),
    (("-c", "--check"), {"type": whole(0), "help": "verification rounds; 0: none (1)"}),
    (("-J", "--json"), {"dest": "json_path", "help": "write the rows to this file; - is stdout"}),
]
_RANKS: list[_Flag] = [
    (("-g", "--ngpus"), {"dest": "ranks", "type": whole(1), "help": "local ranks"}),
    (("-t", "--nthreads"), {"dest": "threads", "choices": ["1"], "help": "threads per rank: 1"}),
    (("-m", "--agg_iters"), {"type": whole(1), "help": "operations per iteration"}),
    (
        ("-a", "--average"),
        {"type": int, "choices": [*AVERAGES], "help": "0 rank 0, 1 mean, 2 min, 3 max (3)"},
    ),
    (("-T", "--timeout"), {"type": seconds, "help": "seconds without progress before it fails"}),
    (("--transport",), {"help": "auto, or one that `hybridengine info` lists"}),
]
# Flags that a benchmark takes where its record names the group.
_GROUPS: dict[str, list[_Flag]] = {
    "ranks": _RANKS,
    "sizes": [
        (("-b", "--minbytes"), {"dest": "min_bytes", "type": size, "help": "smallest size (32M)"}),
        (("-e", "--maxbytes"), {"dest": "max_bytes", "type": size, "help": "largest size (32M)"}),
        (("-i", "--stepbytes"), {"dest": "step_bytes", "type": size, "help": "add this (1M)"}),
        (
            ("-f", "--stepfactor"),
            {"dest": "step_factor", "type": whole(1), "help": "multiply; wins over -i above 1"},
        ),
    ],
    "dtype": [
        (("-d", "--datatype"), {"dest": "dtypes", "type": dtypes, "help": "element type, or all"})
    ],
    "model": [
        (("--model",), {"required": True, "help": "a preset, or the directory of a checkpoint"}),
        (("--src",), {"required": True, "help": "layout of the source"}),
        (("--dst",), {"required": True, "help": "layout of the destination"}),
    ],
    "move": [
        (("--bucket",), {"dest": "bucket_bytes", "type": size, "help": "bytes of a bucket (32M)"}),
        (
            ("--out",),
            {"choices": ["torch", "ours"], "help": "whose memory out= is, in place (torch)"},
        ),
    ],
    "rivals": [(("--rival",), {"dest": "rivals", "type": names, "help": "by name, gloo, or all"})],
    "redop": [(("-o", "--op"), {"dest": "redops", "type": redops, "help": "sum, max, min, avg"})],
    "fusion": [
        (
            ("--bucket",),
            {"dest": "fusion_bytes", "type": fusion, "help": "bytes of a bucket (auto)"},
        )
    ],
    "sweep": [(("--sweep",), {"help": "over something else than sizes; draws it"})],
    "picture": [(("--png",), {"dest": "picture", "help": "the file to draw into"})],
    "share": [
        (("-b", "--minbytes"), {"dest": "min_bytes", "type": size, "help": "of a rank (32M)"})
    ],
    "update": [
        (("--model",), {"help": "a preset, or the directory of a checkpoint (smollm2-135m)"}),
        (("--dst",), {"help": "layout for generation (vllm, every rank a replica)"}),
    ],
    "mask": [
        (("--threshold",), {"type": threshold, "help": "keep scores from it; they are 0 to 1"}),
        (("--granularity",), {"choices": GRANULARITIES, "help": "what has a score (row)"}),
    ],
    "tensors": [(("--tensors",), {"type": whole(1), "help": "split the bytes into so many (1)"})],
    "only": [(("--only",), {"type": names, "help": "names of cases, or their beginnings"})],
}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See hybridengine bench {self.prog.split()[-1]} --help.")


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
    for flag, how in _SHARED + [each for group in groups for each in _GROUPS[group]]:
        parser.add_argument(*flag, **how)
    given = vars(parser.parse_args(arguments))
    given.pop("threads", None)
    return Options(**given)
