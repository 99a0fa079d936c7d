"""The facts of `bench masked_all_reduce`, and its `--sweep density`: time and bytes over the part
of entries that every rank keeps, for one array of -e bytes."""

from __future__ import annotations

from typing import Any

from hybridengine._bench import plot
from hybridengine._bench.bucket_sweep import size_text
from hybridengine._bench.flags import Options
from hybridengine._bench.record import Case, Column, Sweep
from hybridengine._core import UsageError
from hybridengine.collective import link_model

# Rivals that are the same call on one route; with both the sweep tells link_model which pays where.
_ROUTES = ("route_wire", "route_dense")
_DENSITIES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0)


def _kept(row: dict[str, Any]) -> str:
    return format(row["kept_percent"], ".2f")


def _wire(row: dict[str, Any]) -> str:
    return str(row["wire_bytes"])


def _dense(row: dict[str, Any]) -> str:
    return str(row["dense_bytes"])


COLUMNS = (Column("kept", "%", _kept), Column("wire", "B", _wire), Column("dense", "B", _dense))


def _cases(options: Options) -> list[Case]:
    if len(options.dtypes) > 1 or len(options.redops) > 1:
        raise UsageError("--sweep density is of one type and op. Name one of each.")
    dtype, op = (*options.dtypes, "float32")[0], (*options.redops, "avg")[0]
    return [
        Case(options.end_bytes, dtype, op, label=f"density {density:g}", setting=density)
        for density in _DENSITIES
    ]


def _conclude(options: Options, rows: list[dict[str, Any]], picture: plot.Picture) -> list[str]:
    masked = [row for row in rows if row["rival"] is None]
    dense = [row for row in rows if row["rival"] == "dense"]
    pairs = zip(masked, dense, strict=True)
    faster = [row["setting"] for row, whole in pairs if _ms(row) < _ms(whole)]
    first = masked[0]
    title = (
        f"masked_all_reduce by {options.granularity}, {size_text(first['size'])}, "
        f"{first['transport']}, {first['num_ranks']} ranks"
    )
    routes = {name: [row for row in rows if row["rival"] == name] for name in _ROUTES}
    plot.draw(picture, title, [_time_chart(masked, dense, routes), _bytes_chart(masked)])
    where = ", ".join(f"{density:g}" for density in faster) if faster else "none of them"
    return [
        f"masked was faster than dense at densities: {where}",
        *(_keep(options, first, *routes.values()) if all(routes.values()) else []),
        f"drawn in {picture.path}",
    ]


def _keep(
    options: Options, first: dict[str, Any], wire: list[dict[str, Any]], dense: list[dict[str, Any]]
) -> list[str]:
    """The largest density up to which the route "wire" is never the slower one."""
    best = 0.0
    for by_wire, by_dense in zip(wire, dense, strict=True):
        if _ms(by_wire) > _ms(by_dense):
            break
        best = float(by_wire["setting"])
    where = (first["transport"], first["num_ranks"], options.granularity)
    try:
        link_model.save_wire_density(*where, best)
    except OSError as error:
        return [f"route='fast' does not learn of it: {error}"]
    return [f"route='fast' goes by wire up to a density of {best:g}: {link_model.path()}"]


def _time_chart(
    masked: list[dict[str, Any]],
    dense: list[dict[str, Any]],
    routes: dict[str, list[dict[str, Any]]],
) -> plot.Chart:
    named = {"masked": masked, "dense all_reduce": dense, **routes}
    curves = [
        plot.Curve(name, [row["setting"] for row in rows], [_ms(row) for row in rows], colour)
        for colour, (name, rows) in enumerate(named.items())
        if rows
    ]
    return plot.Chart("density", "time (ms)", curves)


def _bytes_chart(masked: list[dict[str, Any]]) -> plot.Chart:
    densities = [row["setting"] for row in masked]
    curves = [
        plot.Curve(name, densities, [row[key] / 1e6 for row in masked], colour)
        for colour, (name, key) in enumerate((("masked", "wire_bytes"), ("dense", "dense_bytes")))
    ]
    return plot.Chart("density", "sent by a rank (MB)", curves)


def _ms(row: dict[str, Any]) -> float:
    return float(row["in_place"]["wall_us"]) / 1e3


DENSITY_SWEEP = Sweep(cases=_cases, conclude=_conclude, halves=(True,))
