"""link_model: what a bucket costs on a link, as `hybridengine bench all_reduce --sweep bucket` has
measured it, and the bucket that it picks for an array; and up to which density it pays to send only
what takes part in a masked_all_reduce, from `hybridengine bench masked_all_reduce --sweep density`.

A *link* is a transport and a number of ranks. An array of M bytes in buckets of B takes
ceil(M / B) alpha + M / beta(B): alpha is the same for every size of bucket, the rate beta is not,
since small buckets stay in a processor's cache and large ones overlap less. The measurements lie in
a small JSON file in the user's cache folder; without one for the link the default applies.

Ranks may have read different files: one of them has to pick for all.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hybridengine import _core
from hybridengine.cache import cache_directory

# Small enough for two to stay in a processor's cache, large enough that alpha does not show.
DEFAULT_BUCKET_BYTES = 4 << 20

# By granularity, measured over shm and cma between two ranks (bench/results/masked_all_reduce.md).
DEFAULT_WIRE_DENSITIES = {"element": 0.01, "row": 1.0, "tensor": 1.0}

_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class LinkModel:
    """One link, from times of an array of `array_bytes`. `rates` are bytes per microsecond by bytes
    of a bucket."""

    array_bytes: int
    alpha_us: float
    rates: dict[int, float]

    def time_us(self, num_bytes: int, bucket_bytes: int) -> float:
        """Of an array of `num_bytes` in measured buckets of `bucket_bytes`."""
        buckets = math.ceil(num_bytes / bucket_bytes)
        return buckets * self.alpha_us + num_bytes / self.rates[bucket_bytes]

    def best_bucket(self, num_bytes: int) -> int:
        """The smallest of the fastest."""
        return min(sorted(self.rates), key=lambda size: self.time_us(num_bytes, size))


def fit(array_bytes: int, times_us: Mapping[int, float]) -> LinkModel:
    """The model of measured times of one array, by bytes of a bucket; at least one.

    alpha is what least squares find for alpha buckets + constant, with relative errors, but never
    below zero or so large that a rate would not stay finite; the rates take up the rest exactly.
    """
    points = [(math.ceil(array_bytes / size), time) for size, time in times_us.items()]
    largest = min(time / buckets for buckets, time in points) / 2
    alpha = min(max(_slope(points), 0.0), largest)
    rates = {
        size: array_bytes / (time - math.ceil(array_bytes / size) * alpha)
        for size, time in times_us.items()
    }
    return LinkModel(array_bytes, alpha, rates)


def _slope(points: Sequence[tuple[int, float]]) -> float:
    """Of the line through (x, y) with the least sum of squared relative errors of y."""
    weights = [1 / y**2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    if spread == 0:
        return 0.0
    both = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True))
    return both / spread


def path() -> Path | None:
    """None without a home directory: nothing is kept then."""
    folder = cache_directory()
    return None if folder is None else folder / "link_model.json"


def save(transport: str, world: int, model: LinkModel) -> None:
    """Puts a link beside what the file has, in one step. Throws OSError."""
    _put("links", _key(transport, world), asdict(model))


def save_wire_density(transport: str, world: int, granularity: str, density: float) -> None:
    """The same for the density up to which the route "wire" was the faster one."""
    _put("wire_densities", f"{_key(transport, world)}/{granularity}", density)


def _put(part: str, key: str, value: Any) -> None:
    target = path()
    if target is None:
        raise FileNotFoundError("there is no home directory. Set HOME or XDG_CACHE_HOME")
    kept = load() or {"schema_version": _SCHEMA_VERSION, "links": {}}
    kept.setdefault(part, {})[key] = value
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as file:
        file.write(json.dumps(kept, indent=2) + "\n")
    os.replace(file.name, target)
    forget()


def load() -> dict[str, Any] | None:
    """What the file holds. None without a file; also, with a warning, where it cannot be used."""
    source = path()
    try:
        if source is None or not source.exists():
            return None
        found = json.loads(source.read_text())
        if found["schema_version"] != _SCHEMA_VERSION:
            raise ValueError(f"schema version {found['schema_version']}, not {_SCHEMA_VERSION}")
        for link in found["links"].values():
            _model(link)
        if not all(0 <= float(each) <= 1 for each in found.get("wire_densities", {}).values()):
            raise ValueError("an impossible density")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _core.log("warn", "collective", f"{source} is not used: {error!r}. Remove it.")
        return None
    return dict(found)


def pick_bucket(transport: str, world: int, num_bytes: int | None = None) -> int:
    """Bytes of a bucket for an array of `num_bytes`, or for one as large as that of the sweep: the
    fastest of those measured on this link, or the default. The file is read once in a process."""
    model = _known().get(_key(transport, world))
    if model is None:
        return DEFAULT_BUCKET_BYTES
    return model.best_bucket(model.array_bytes if num_bytes is None else num_bytes)


@cache
def wire_density(transport: str, world: int, granularity: str) -> float:
    """The share of elements that take part up to which the route "wire" is the faster one on this
    link, or the default. The file is read once for each in a process."""
    measured = (load() or {}).get("wire_densities", {})
    default = DEFAULT_WIRE_DENSITIES.get(granularity, 0.0)
    return float(measured.get(f"{_key(transport, world)}/{granularity}", default))


def forget() -> None:
    """The next pick reads the file anew."""
    _known.cache_clear()
    wire_density.cache_clear()


@cache
def _known() -> dict[str, LinkModel]:
    found = load()
    return {} if found is None else {key: _model(link) for key, link in found["links"].items()}


def _model(link: Mapping[str, Any]) -> LinkModel:
    """Throws ValueError, KeyError, TypeError or AttributeError on what is none."""
    rates = {int(size): float(rate) for size, rate in link["rates"].items()}
    array_bytes, alpha = int(link["array_bytes"]), float(link["alpha_us"])
    if not rates or array_bytes < 1 or not 0 <= alpha < math.inf:
        raise ValueError("a link without rates, or with an impossible alpha or array")
    if any(size < 1 or not 0 < rate < math.inf for size, rate in rates.items()):
        raise ValueError("an impossible rate")
    return LinkModel(array_bytes, alpha, rates)


def _key(transport: str, world: int) -> str:
    return f"{transport}/{world}"
