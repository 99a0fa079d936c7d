"""`bench all_reduce --sweep bucket`: one array in buckets of every size from 256 KiB to 1 GiB.

The array has -e bytes (1 GiB without it, less where memory is short) and is the largest bucket.
What it finds becomes the model of this link, which bucket_bytes="auto" reads.
"""

from __future__ import annotations

import os
from typing import Any

from hybridengine._bench import plot
from hybridengine._bench.collective import reducing_ranks, reducing_rows
from hybridengine._bench.flags import Options
from hybridengine._bench.record import Case, Sweep
from hybridengine._core import UsageError
from hybridengine.collective import link_model

_SMALLEST, _LARGEST = 256 << 10, 1 << 30

# A rank holds the array, and beside it twice what memcpy copies: up to four times the array.
_ARRAYS_OF_A_RANK = 8
_UNITS = ((30, "G"), (20, "M"), (10, "K"), (0, ""))


def array_bytes(options: Options) -> int:
    """The same on every rank of a host: by its memory, not by what is free of it."""
    asked = _LARGEST if options.max_bytes is None else options.max_bytes
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fitting = memory // (_ARRAYS_OF_A_RANK * reducing_ranks(options))
    capped = 1 << (fitting.bit_length() - 1)
    return asked if asked <= capped else capped


def _cases(options: Options) -> list[Case]:
    size = array_bytes(options)
    if size < _SMALLEST:
        raise UsageError(f"--sweep bucket begins at 256K, the array has {size} bytes. Raise -e.")
    rows = reducing_rows(options)
    if len(rows) != 1:
        raise UsageError("--sweep bucket is of one type and op. Name one of each.")
    ((dtype, op),) = rows
    buckets = [_SMALLEST]
    while 2 * buckets[-1] <= min(size, _LARGEST):
        buckets.append(2 * buckets[-1])
    return [
        Case(size, dtype, op, label=f"bucket {size_text(each)}", setting=each) for each in buckets
    ]


def size_text(num_bytes: int) -> str:
    """As the flags take it."""
    shift, unit = next(each for each in _UNITS if num_bytes % (1 << each[0]) == 0)
    return f"{num_bytes >> shift}{unit}"


def _conclude(options: Options, rows: list[dict[str, Any]], picture: plot.Picture) -> list[str]:
    ours = [row for row in rows if row["rival"] is None]
    if any(row["nwrong"] for row in ours):
        return ["values were wrong: nothing is drawn or kept"]
    times = {row["setting"]: row["in_place"]["wall_us"] for row in ours}
    first = ours[0]
    model = link_model.fit(first["size"], times)
    _draw(picture, first, rows)
    best = size_text(model.best_bucket(first["size"]))
    link = f"{first['transport']} between {first['num_ranks']} ranks"
    return [
        f"alpha {model.alpha_us:.1f} us a bucket; rates "
        + ", ".join(f"{size_text(b)} {rate / 1e3:.2f} GB/s" for b, rate in model.rates.items()),
        f"picks {best} for {size_text(first['size'])} over {link}; drawn in {picture.path}",
        _keep(first, model),
    ]


def _keep(first: dict[str, Any], model: link_model.LinkModel) -> str:
    try:
        link_model.save(first["transport"], first["num_ranks"], model)
    except OSError as error:
        return f"bucket_bytes='auto' does not learn of it: {error}"
    return f"bucket_bytes='auto' reads it from {link_model.path()}"


def _draw(picture: plot.Picture, first: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(row["rival"] for row in rows if row["rival"] != "memcpy"))
    curves = []
    for colour, name in enumerate(names):
        mine = [row for row in rows if row["rival"] == name]
        sizes = [row["setting"] / (1 << 20) for row in mine]
        times = [row["in_place"]["wall_us"] / 1e3 for row in mine]
        curves.append(plot.Curve(name or "hybridengine", sizes, times, colour))
    title = (
        f"all_reduce of {size_text(first['size'])}, {first['transport']}, "
        f"{first['num_ranks']} ranks"
    )
    chart = plot.Chart("bucket (MiB)", "time (ms)", curves, log_x=True)
    plot.draw(picture, title, [chart])


BUCKET_SWEEP = Sweep(cases=_cases, conclude=_conclude, halves=(True,))
