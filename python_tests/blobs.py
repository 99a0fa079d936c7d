"""Saved bytes of specs, layouts, plans and schedules, read and written in plain Python.

A second reader of the format: tests look into places that the bindings do not show, and write bytes
that no builder would make, with digests that fit.
"""

import struct
from dataclasses import dataclass, field, replace

from hybridengine import _core

DTYPES = list(_core.dtype_table())


VERSIONS = {"spec": 1, "layout": 2, "plan": 2, "schedule": 3}


@dataclass(frozen=True)
class Local:
    rank: int
    name: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    tensor: int
    local: int
    rank: int
    start: tuple[int, ...]
    size: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Move:
    tensor: int
    src_piece: int
    dst_piece: int
    src: int
    dst: int
    start: tuple[int, ...]
    size: tuple[int, ...]
    src_dtype: str
    dst_dtype: str
    op: int = 0
    codec: int = 0
    step: int = 0


@dataclass(frozen=True)
class Item:
    move: int
    offset: int
    start: tuple[int, ...]
    size: tuple[int, ...]


@dataclass(frozen=True)
class Bucket:
    src: int
    dst: int
    step: int
    plain: int
    round: int
    gate: int
    feeds: int
    num_bytes: int
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Spec:
    tensors: list[tuple[str, str, tuple[int, ...]]]  # name, dtype, shape
    aliases: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Layout:
    text: str
    op: int
    spec: Spec
    ranks: list[int]
    names: list[str]
    locals: list[Local]
    pieces: list[Piece]


@dataclass(frozen=True)
class Cut:
    source: int
    start: tuple[int, ...]
    size: tuple[int, ...]


@dataclass(frozen=True)
class Pattern:
    cuttings: list[list[Cut]]
    cutting_of: list[int]


@dataclass(frozen=True)
class Plan:
    src: Layout
    dst: Layout
    patterns: list[Pattern]
    ends: list[list[int]]


@dataclass(frozen=True)
class Schedule:
    """Of one rank; items count its own moves."""

    plan: Plan
    rank: int
    bucket_bytes: int
    in_order: int
    buckets: list[Bucket]


class Reader:
    def __init__(self, blob: bytes, magic: str) -> None:
        assert blob[-8:] == digest(blob[:-8])
        self._left = memoryview(blob)[:-8]
        assert self.text() == f"hybridengine.{magic}"
        assert self.get("I") == VERSIONS[magic]

    def get(self, code: str):
        size = struct.calcsize("<" + code)
        (value,) = struct.unpack("<" + code, self._left[:size])
        self._left = self._left[size:]
        return value

    def many(self, code: str, count: int) -> tuple[int, ...]:
        return tuple(self.get(code) for _ in range(count))

    def raw(self) -> bytes:
        count = self.get("Q")
        taken, self._left = bytes(self._left[:count]), self._left[count:]
        return taken

    def text(self) -> str:
        return self.raw().decode()

    def finish(self) -> None:
        assert not self._left


def digest(blob: bytes) -> bytes:
    return struct.pack("<Q", _core.digest(blob))


def raw(blob: bytes) -> bytes:
    return struct.pack("<Q", len(blob)) + blob


def text(value: str) -> bytes:
    return raw(value.encode())


def pack(code: str, *values: int) -> bytes:
    return struct.pack("<" + code, *values)


def dims(values: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def box(start: tuple[int, ...], size: tuple[int, ...]) -> bytes:
    return b"".join(pack("qq", *pair) for pair in zip(start, size, strict=True))


def close(magic: str, *parts: bytes) -> bytes:
    body = text(f"hybridengine.{magic}") + pack("I", VERSIONS[magic]) + b"".join(parts)
    return body + digest(body)


def read_spec(blob: bytes) -> Spec:
    reader = Reader(blob, "spec")
    tensors = []
    for _ in range(reader.get("Q")):
        name, dtype, ndim = reader.text(), DTYPES[reader.get("B")], reader.get("i")
        tensors.append((name, dtype, reader.many("q", ndim)))
    aliases = [(reader.text(), reader.text()) for _ in range(reader.get("Q"))]
    reader.finish()
    return Spec(tensors, aliases)


def write_spec(spec: Spec) -> bytes:
    rows = [
        text(name) + pack("Bi", DTYPES.index(dtype), len(shape)) + dims(shape)
        for name, dtype, shape in spec.tensors
    ]
    aliases = [text(alias) + text(owner) for alias, owner in spec.aliases]
    return close("spec", pack("Q", len(rows)), *rows, pack("Q", len(aliases)), *aliases)


def read_layout(blob: bytes) -> Layout:
    reader = Reader(blob, "layout")
    title, spec, op = reader.text(), read_spec(reader.raw()), reader.get("B")
    ranks = list(reader.many("i", reader.get("Q")))
    names = [reader.text() for _ in range(reader.get("Q"))]
    locals_ = []
    for _ in range(reader.get("Q")):
        rank, name, dtype, ndim = (reader.get(code) for code in "iiBi")
        locals_.append(Local(rank, name, DTYPES[dtype], reader.many("q", ndim)))
    pieces = []
    for _ in range(reader.get("Q")):
        tensor, local, rank, ndim = reader.many("i", 4)
        start, size = reader.many("q", ndim), reader.many("q", ndim)
        offset = reader.get("q")
        pieces.append(Piece(tensor, local, rank, start, size, offset, reader.many("q", ndim)))
    reader.finish()
    return Layout(title, op, spec, ranks, names, locals_, pieces)


def write_layout(layout: Layout) -> bytes:
    locals_ = [
        pack("iiBi", each.rank, each.name, DTYPES.index(each.dtype), len(each.shape))
        + dims(each.shape)
        for each in layout.locals
    ]
    pieces = [
        pack("iiii", each.tensor, each.local, each.rank, len(each.size))
        + dims(each.start)
        + dims(each.size)
        + pack("q", each.offset)
        + dims(each.strides)
        for each in layout.pieces
    ]
    return close(
        "layout",
        text(layout.text),
        raw(write_spec(layout.spec)),
        pack("B", layout.op),
        pack(f"Q{len(layout.ranks)}i", len(layout.ranks), *layout.ranks),
        pack("Q", len(layout.names)),
        *map(text, layout.names),
        pack("Q", len(locals_)),
        *locals_,
        pack("Q", len(pieces)),
        *pieces,
    )


def read_plan(blob: bytes) -> Plan:
    reader = Reader(blob, "plan")
    src, dst = read_layout(reader.raw()), read_layout(reader.raw())
    patterns = []
    for _ in range(reader.get("Q")):
        cuttings = [
            [_read_cut(reader) for _ in range(reader.get("Q"))] for _ in range(reader.get("Q"))
        ]
        patterns.append(Pattern(cuttings, list(reader.many("i", reader.get("Q")))))
    ends = [list(reader.many("q", reader.get("Q"))) for _ in range(reader.get("Q"))]
    reader.finish()
    return Plan(src, dst, patterns, ends)


def _read_cut(reader: Reader) -> Cut:
    source, ndim = reader.many("i", 2)
    numbers = reader.many("q", 2 * ndim)
    return Cut(source, numbers[::2], numbers[1::2])


def write_plan(plan: Plan) -> bytes:
    patterns = []
    for pattern in plan.patterns:
        patterns.append(pack("Q", len(pattern.cuttings)))
        for cutting in pattern.cuttings:
            patterns.append(pack("Q", len(cutting)))
            for cut in cutting:
                patterns.append(pack("ii", cut.source, len(cut.size)) + box(cut.start, cut.size))
        count = len(pattern.cutting_of)
        patterns.append(pack(f"Q{count}i", count, *pattern.cutting_of))
    return close(
        "plan",
        raw(write_layout(plan.src)),
        raw(write_layout(plan.dst)),
        pack("Q", len(plan.patterns)),
        *patterns,
        pack("Q", len(plan.ends)),
        *(pack(f"Q{len(ends)}q", len(ends), *ends) for ends in plan.ends),
    )


def read_schedule(core_schedule: _core.Schedule) -> Schedule:
    """From the saved bytes, which leave out how many dims an item has: its move knows."""
    reader = Reader(core_schedule.save(), "schedule")
    plan, rank = read_plan(reader.raw()), reader.get("i")
    bucket_bytes, in_order = reader.get("q"), reader.get("B")
    moves = core_schedule.plan.moves_of(rank)
    buckets = []
    for _ in range(reader.get("Q")):
        head = [reader.get(code) for code in "iiBBiiiq"]
        items = []
        for _ in range(reader.get("Q")):
            move, offset = reader.get("i"), reader.get("q")
            numbers = reader.many("q", 2 * len(moves[move]["size"]))
            items.append(Item(move, offset, numbers[::2], numbers[1::2]))
        buckets.append(Bucket(*head, tuple(items)))
    reader.finish()
    return Schedule(plan, rank, bucket_bytes, in_order, buckets)


def write_schedule(schedule: Schedule) -> bytes:
    rows = []
    for each in schedule.buckets:
        rows.append(
            pack("iiBB", each.src, each.dst, each.step, each.plain)
            + pack("iii", each.round, each.gate, each.feeds)
            + pack("qQ", each.num_bytes, len(each.items))
        )
        rows += [pack("iq", i.move, i.offset) + box(i.start, i.size) for i in each.items]
    return close(
        "schedule",
        raw(write_plan(schedule.plan)),
        pack("iqB", schedule.rank, schedule.bucket_bytes, schedule.in_order),
        pack("Q", len(schedule.buckets)),
        *rows,
    )


def edited(rows: list, index: int, **changes) -> list:
    """`rows` with row `index` changed."""
    return [*rows[:index], replace(rows[index], **changes), *rows[index + 1 :]]
