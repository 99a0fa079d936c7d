"""Two processes, one writing into the other's memory through a rival's library.

Runs in the rival's own virtual environment: it needs numpy and nothing of ours. A rival gives a
class with the two ends of its transfer; this gives it buffers, times its writes and checks them.

An *end* is made in each process with (role, buffer), role "src" or "dst", and has
  address() -> a picklable value that the other end needs,
  connect(theirs): takes the other end's address,
  write(parts): on "src": moves these (offset, length) of its buffer to the same offsets over there,
    and returns when the library says that they are done,
  progress(): on "dst": called again and again while "src" writes,
  close().
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_ANSWER_SECONDS = 120


def main(name: str, make_end: Callable[[str, Any], Any], modules: list[str]) -> None:
    """Prints a line of JSON per job, or one with `error` where the library failed. Without jobs
    `modules` are imported, and what is missing for that is printed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", help="COUNTxBYTES, such as 1x256M or 4096x64K")
    parser.add_argument("-n", "--iters", type=int, default=20)
    parser.add_argument("-w", "--warmup", type=int, default=2)
    given = parser.parse_args()
    if not given.jobs:
        sys.stdout.write(_missing(modules))
    for job in given.jobs:
        count, _, size = job.partition("x")
        part_bytes = _bytes(size)
        row: dict[str, Any] = {"who": name, "count": int(count), "part_bytes": part_bytes}
        row["size"] = int(count) * part_bytes
        try:
            row |= _run(make_end, row, given.iters, given.warmup)
        except Exception as error:  # whatever a rival's library raises belongs into the table
            row["error"] = f"{type(error).__name__}: {error}"
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()  # a row at a time
    sys.stdout.flush()  # what is missing
    os._exit(0)  # threads of a library may never end


def _missing(modules: list[str]) -> str:
    """One line, or nothing where all can be imported."""
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        return " ".join(str(error).split()) + "\n"
    return ""


def _bytes(text: str) -> int:
    unit = text[-1].upper()
    return int(text[:-1]) * _UNITS[unit] if unit in _UNITS else int(text)


def _run(make_end: Any, row: dict[str, Any], iters: int, warmup: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_destination, args=(theirs, make_end, row), daemon=True)
    process.start()
    theirs.close()
    try:
        return _source(ours, make_end, row, iters, warmup)
    finally:
        ours.close()
        process.join(5)
        if process.is_alive():
            process.kill()


def _source(
    pipe: Any, make_end: Any, row: dict[str, Any], iters: int, warmup: int
) -> dict[str, Any]:
    buffer = _pattern(row["size"])
    end = make_end("src", buffer)
    pipe.send(end.address())
    end.connect(_answer(pipe))
    pipe.send("go")
    parts = [(i * row["part_bytes"], row["part_bytes"]) for i in range(row["count"])]
    times = []
    for iteration in range(-warmup, iters):
        began = time.perf_counter()
        end.write(parts)
        took = time.perf_counter() - began
        if iteration >= 0:
            times.append(took * 1e6)
    buffer ^= 0x5A  # what lies there so far is wrong from here on
    pipe.send("fresh")
    _answer(pipe)
    end.write(parts)
    pipe.send("check")
    wrong = _answer(pipe)
    end.close()
    median = statistics.median(times)
    return {"time_us": median, "best_us": min(times), "nwrong": wrong}


def _destination(pipe: Any, make_end: Any, row: dict[str, Any]) -> None:
    buffer = np.zeros(row["size"], np.uint8)
    end = make_end("dst", buffer)
    address = _answer(pipe)
    pipe.send(end.address())
    end.connect(address)
    while True:
        while not pipe.poll(0.0005):
            end.progress()
        word = pipe.recv()
        if word == "fresh":
            buffer[:] = 0xA4
            pipe.send("ready")
        if word == "check":
            pipe.send(int((buffer != (_pattern(row["size"]) ^ 0x5A)).sum()))
            end.close()
            os._exit(0)  # see main()


def _answer(pipe: Any) -> Any:
    if not pipe.poll(_ANSWER_SECONDS):
        raise TimeoutError(f"the other process said nothing for {_ANSWER_SECONDS} s")
    return pipe.recv()


def _pattern(size: int) -> Any:
    """Bytes that differ from those of any near offset; a period that no buffer size divides."""
    block = np.random.default_rng(1).integers(0, 256, 1_048_573, dtype=np.uint8)
    return np.resize(block, size)
