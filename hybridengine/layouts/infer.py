"""infer: the logical tensors behind the local shapes that every rank reports.

For a model that nobody described: names stay, and dim 0 at most is cut. Shapes are never guessed
from one rank; every rank's must agree with what all of them say together.
"""

from __future__ import annotations

from collections.abc import Mapping as Dict
from collections.abc import Sequence

from hybridengine._core import UsageError

LocalRow = tuple[str, Sequence[int], str]
LocalShapes = Dict[int, Sequence[LocalRow]]
_Row = tuple[tuple[int, ...], str]


def infer_tensors(
    family: str, args: Dict[str, int], ranks: Sequence[int], local_shapes: LocalShapes
) -> list[tuple[str, tuple[int, ...], str]]:
    """Throws UsageError naming tensor, both shapes and ranks where they contradict each other."""
    if family not in ("fsdp2", "replicated", "hf") or args.get("tp", 1) > 1:
        raise UsageError(
            f"global shapes cannot be inferred under {family} with tensor parallelism. Pass spec=."
        )
    if sorted(local_shapes) != sorted(ranks):
        raise UsageError(
            f"local shapes came from ranks {sorted(local_shapes)}, the layout has "
            f"{sorted(ranks)}. Gather them from all ranks of the layout."
        )
    tables = _tables(local_shapes)
    _check_names(ranks, tables)
    chunks = args["n"] if family == "fsdp2" else 1
    return [
        (name, _global_shape(name, dtype, ranks, tables, chunks), dtype)
        for name, (_, dtype) in tables[ranks[0]].items()
    ]


def _tables(local_shapes: LocalShapes) -> dict[int, dict[str, _Row]]:
    tables: dict[int, dict[str, _Row]] = {}
    for rank, rows in local_shapes.items():
        table = tables[rank] = {}
        for name, shape, dtype in rows:
            if name in table:
                raise UsageError(f"rank {rank} has two tensors named {name!r}. Rename one.")
            table[name] = (tuple(shape), dtype)
    return tables


def _check_names(ranks: Sequence[int], tables: dict[int, dict[str, _Row]]) -> None:
    first = ranks[0]
    for rank in ranks[1:]:
        for missing, there in ((rank, first), (first, rank)):
            for name in tables[there]:
                if name not in tables[missing]:
                    raise UsageError(
                        f"{name!r} is on rank {there} but not on rank {missing}. Every rank must "
                        "name every tensor, an empty one with 0 rows."
                    )


def _global_shape(
    name: str,
    dtype: str,
    ranks: Sequence[int],
    tables: dict[int, dict[str, _Row]],
    chunks: int,
) -> tuple[int, ...]:
    rows = [tables[rank][name] for rank in ranks]
    for rank, (_, other) in zip(ranks, rows, strict=True):
        if other != dtype:
            raise UsageError(
                f"{name!r} is {dtype} on rank {ranks[0]} and {other} on rank {rank}. Convert one."
            )
    shapes = [shape for shape, _ in rows]
    inner = max(shapes, key=len)[1:]
    for rank, shape in zip(ranks, shapes, strict=True):
        if len(shape) != len(shapes[0]) or shape[1:] != shapes[0][1:]:
            raise UsageError(
                f"{name!r} is {list(shapes[0])} on rank {ranks[0]} and {list(shape)} on rank "
                f"{rank}: only dim 0 may differ. A rank without rows must keep the other dims, "
                f"as {[0, *inner]}."
            )
    if not shapes[0]:
        return ()
    total = sum(shape[0] for shape in shapes[:chunks])
    _check_rows(name, ranks, shapes, chunks, total)
    return (total, *shapes[0][1:])


def _check_rows(
    name: str, ranks: Sequence[int], shapes: Sequence[tuple[int, ...]], chunks: int, total: int
) -> None:
    """Every rank must hold its chunk of `total` rows, in each replica."""
    size = -(-total // chunks)
    for place, (rank, shape) in enumerate(zip(ranks, shapes, strict=True)):
        expected = max(0, min(size, total - place % chunks * size))
        if shape[0] == expected:
            continue
        whole = [total, *shape[1:]]
        if chunks == 1:
            raise UsageError(
                f"{name!r} is {whole} on rank {ranks[0]} and {list(shape)} on rank {rank}. Every "
                "rank must hold all of it; if it is sharded, name that layout."
            )
        raise UsageError(
            f"{name!r} is {list(shape)} on rank {rank}, where {[expected, *shape[1:]]} is due: "
            f"{whole} in {chunks} chunks of {size} rows (ranks "
            f"{', '.join(map(str, ranks[:chunks]))}). Shard it with fully_shard, or describe the "
            "split by hand with Layout.from_boxes()."
        )
