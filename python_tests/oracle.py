"""The oracle of plans and schedules: elements carry their number, and numpy watches where they go.

An element's *id* is its number among all elements of all logical tensors, in spec order and
row-major. A rank's memory is one flat array of ids per local tensor, -1 where nothing is known. The
oracle carries out moves or buckets on such arrays and compares with what the layouts say. It knows
the saved format and nothing else of the core.
"""

import math
from dataclasses import dataclass, replace

import blobs
import numpy as np

from hybridengine import _core

BYTES = _core.dtype_table()
FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
NOTHING = -1


def wire_bytes(src: str, dst: str) -> int:
    return min(BYTES[src], BYTES[dst])


def first_ids(spec: blobs.Spec) -> dict[str, int]:
    """Id of the first element of every tensor, and the number of all elements under ''."""
    firsts, total = {}, 0
    for name, _, shape in spec.tensors:
        firsts[name] = total
        total += math.prod(shape)
    return firsts | {"": total}


def grid(start, size, strides, base=0):
    """base + the sum of index * stride over a box, as an array of the box's shape."""
    result = np.full(size, base, dtype=np.int64)
    for dim, (begin, count, stride) in enumerate(zip(start, size, strides, strict=True)):
        steps = (np.arange(count) + begin) * stride
        result += steps.reshape([-1 if d == dim else 1 for d in range(len(size))])
    return result


def ids_of(shape, first, start, size):
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return grid(start, size, strides, first)


def places_of(piece: blobs.Piece, start, size):
    """Flat indices into the piece's local tensor of a box within the piece."""
    inside = [a - b for a, b in zip(start, piece.start, strict=True)]
    return grid(inside, size, piece.strides, piece.offset)


class Memory:
    """What all ranks store under a layout: ids by local tensor, and how often each was written."""

    def __init__(self, layout: blobs.Layout, firsts: dict[str, int]) -> None:
        self.layout = layout
        self.values = [np.full(math.prod(each.shape), NOTHING) for each in layout.locals]
        self.writes = [np.zeros(math.prod(each.shape), dtype=int) for each in layout.locals]
        self._firsts = firsts

    def fill(self) -> "Memory":
        for piece in self.layout.pieces:
            where = places_of(piece, piece.start, piece.size)
            self.writes[piece.local][where] += 1
            self.values[piece.local][where] = self.ids(piece, piece.start, piece.size)
        return self

    def ids(self, piece: blobs.Piece, start, size):
        name, _, shape = self.layout.spec.tensors[piece.tensor]
        return ids_of(shape, self._firsts[name], start, size)

    def held(self, rank: int) -> set[int]:
        found = set()
        for local, values in zip(self.layout.locals, self.values, strict=True):
            if local.rank == rank:
                found |= set(values.tolist())
        return found - {NOTHING}


@dataclass(frozen=True)
class Moves:
    """What all ranks together move, each move once: as its destination has it."""

    src: blobs.Layout
    dst: blobs.Layout
    moves: list[blobs.Move]


@dataclass(frozen=True)
class Buckets:
    """What all ranks together carry, each bucket once; items count `plan.moves`."""

    plan: Moves
    bucket_bytes: int
    buckets: list[blobs.Bucket]


def ranks_of(plan: blobs.Plan) -> list[int]:
    return sorted({*plan.src.ranks, *plan.dst.ranks})


def moves_of(core_plan, rank: int, names: list[str]) -> list[blobs.Move]:
    """`names` are those of the destination's tensors."""
    ops = ("copy", "sum", "mean", "min", "max")
    keys = ("src_piece", "dst_piece", "src", "dst", "start", "size", "src_dtype", "dst_dtype")
    return [
        blobs.Move(
            names.index(row["tensor"]),
            *(row[key] for key in keys),
            op=ops.index(row["op"]),
            step=row["step"],
        )
        for row in core_plan.moves_of(rank)
    ]


def all_moves(core_plan) -> Moves:
    """Both ends of every move must have it."""
    plan = blobs.read_plan(core_plan.save())
    names = [name for name, _, _ in plan.dst.spec.tensors]
    arriving, leaving = [], []
    for rank in ranks_of(plan):
        own = moves_of(core_plan, rank, names)
        assert all(rank in (move.src, move.dst) for move in own)
        arriving += [move for move in own if move.dst == rank]
        leaving += [move for move in own if move.src == rank]
    assert len(arriving) == len(leaving) == len({*arriving}) and {*arriving} == {*leaving}
    assert core_plan.num_moves == len(arriving)
    return Moves(plan.src, plan.dst, sorted(arriving, key=lambda move: move.step))


def all_buckets(core_plan, bucket_bytes: int, in_order: bool = False) -> Buckets:
    """Both ends of every bucket must come to the same one."""
    moves = all_moves(core_plan)
    index = {move: i for i, move in enumerate(moves.moves)}
    names = [name for name, _, _ in moves.dst.spec.tensors]
    arriving, leaving = {}, {}
    for rank in ranks_of(moves):
        core = _core.make_schedule(core_plan, rank, bucket_bytes, in_order)
        core.check()
        own = moves_of(core_plan, rank, names)
        saved = blobs.read_schedule(core).buckets
        for bucket, row in zip(saved, core.buckets, strict=True):
            items = tuple(replace(item, move=index[own[item.move]]) for item in bucket.items)
            found = replace(bucket, items=items, gate=-1, feeds=-1)
            key = (bucket.src, bucket.dst, row["index"])
            for side, end in ((arriving, bucket.dst), (leaving, bucket.src)):
                if end == rank:
                    assert key not in side
                    side[key] = found
        _check_order(core, saved)
    assert arriving == leaving
    return Buckets(moves, bucket_bytes, list(arriving.values()))


def _check_order(core, buckets: list[blobs.Bucket]) -> None:
    """A rank sees its buckets in the order of steps and rounds."""
    for ids, end in ((core.incoming, "dst"), (core.outgoing, "src")):
        rounds = [(buckets[i].step, buckets[i].round) for i in ids]
        assert rounds == sorted(rounds)
        assert sorted(ids) == [
            i
            for i, each in enumerate(buckets)
            if getattr(each, end) == core.rank and each.src != each.dst
        ]


class Run:
    """A plan carried out on ids."""

    def __init__(self, plan: Moves) -> None:
        self.plan = plan
        firsts = first_ids(plan.dst.spec)
        self.src = Memory(plan.src, firsts).fill()
        self.dst = Memory(plan.dst, firsts)
        self.wanted = Memory(plan.dst, firsts).fill()

    def read(self, move: blobs.Move, start, size):
        piece = self.plan.src.pieces[move.src_piece]
        assert piece.rank == move.src
        return self.src.values[piece.local][places_of(piece, start, size)]

    def write(self, move: blobs.Move, start, size, values) -> None:
        piece = self.plan.dst.pieces[move.dst_piece]
        assert piece.rank == move.dst and piece.tensor == move.tensor
        where = places_of(piece, start, size)
        self.dst.values[piece.local][where] = values
        self.dst.writes[piece.local][where] += 1

    def copy(self, move: blobs.Move) -> None:
        self.write(move, move.start, move.size, self.read(move, move.start, move.size))

    def check_arrived(self) -> None:
        """Every destination element is there, written once, and nothing beside them."""
        for index in range(len(self.plan.dst.locals)):
            np.testing.assert_array_equal(self.dst.values[index], self.wanted.values[index])
            np.testing.assert_array_equal(self.dst.writes[index], self.wanted.writes[index])

    def bounds(self) -> dict[int, dict[str, int]]:
        """Bytes per rank that are needed, held and to be received, from sets of ids alone."""
        rows = {}
        for rank in sorted({*self.plan.src.ranks, *self.plan.dst.ranks}):
            row = {"needed_bytes": 0, "held_bytes": 0}
            held = self.src.held(rank)
            for piece in self.plan.dst.pieces:
                if piece.rank == rank:
                    ids = self.wanted.ids(piece, piece.start, piece.size).ravel().tolist()
                    each = self._bytes_of(piece)
                    row["needed_bytes"] += each * len(ids)
                    row["held_bytes"] += each * sum(1 for number in ids if number in held)
            row["bound_bytes"] = row["needed_bytes"] - row["held_bytes"]
            rows[rank] = row
        return rows

    def _bytes_of(self, piece: blobs.Piece) -> int:
        name, dtype, _ = self.plan.dst.spec.tensors[piece.tensor]
        source = next(row[1] for row in self.plan.src.spec.tensors if row[0] == name)
        return wire_bytes(source, dtype)


def check_plan(core_plan) -> Moves:
    """Carries out every move and compares arrivals, bounds and certificate. Returns the moves."""
    plan = all_moves(core_plan)
    run = Run(plan)
    received = dict.fromkeys({*plan.src.ranks, *plan.dst.ranks}, 0)
    sent = dict(received)
    for move in plan.moves:
        assert math.prod(move.size) > 0
        values = run.read(move, move.start, move.size)
        run.write(move, move.start, move.size, values)
        if move.src != move.dst:
            # What a rank has already never comes from another one.
            assert not run.src.held(move.dst) & set(values.ravel().tolist())
            count = math.prod(move.size) * wire_bytes(move.src_dtype, move.dst_dtype)
            received[move.dst] += count
            sent[move.src] += count
    run.check_arrived()
    rows = {row["rank"]: row for row in core_plan.certificate.ranks}
    assert list(rows) == sorted(rows)
    for rank, row in run.bounds().items():
        expected = row | {"rank": rank, "received_bytes": received[rank], "sent_bytes": sent[rank]}
        assert rows.pop(rank) == expected
        assert received[rank] == row["bound_bytes"]
    assert rows == {}
    assert core_plan.certificate.received_over_bound == 1
    assert core_plan.certificate.moved_bytes == sum(received.values())
    assert core_plan.certificate.senders == sorted({piece.rank for piece in plan.src.pieces})
    order = [
        (m.step, m.dst, plan.dst.pieces[m.dst_piece].local, _offset(plan, m)) for m in plan.moves
    ]
    assert order == sorted(order)
    return plan


def _offset(plan: Moves, move: blobs.Move) -> int:
    return int(places_of(plan.dst.pieces[move.dst_piece], move.start, (1,) * len(move.size)).min())


def check_schedule(core_plan, bucket_bytes: int, in_order: bool = False) -> Buckets:
    """Packs and unpacks the buckets of all ranks and compares what arrives. Returns them."""
    schedule = all_buckets(core_plan, bucket_bytes, in_order)
    run = Run(schedule.plan)
    for move in schedule.plan.moves:
        if move.src == move.dst:
            run.copy(move)
    for bucket in schedule.buckets:
        _carry(run, schedule, bucket)
    run.check_arrived()
    _check_rounds(schedule)
    return schedule


def _carry(run: Run, schedule: Buckets, bucket: blobs.Bucket) -> None:
    assert bucket.src != bucket.dst and bucket.items
    assert 0 < bucket.num_bytes <= schedule.bucket_bytes
    taken = np.zeros(bucket.num_bytes, dtype=bool)
    plain = True
    for item in bucket.items:
        move = run.plan.moves[item.move]
        each = wire_bytes(move.src_dtype, move.dst_dtype)
        count = math.prod(item.size) * each
        assert (move.src, move.dst, move.step) == (bucket.src, bucket.dst, bucket.step)
        assert count > 0 and item.offset % each == 0
        assert item.offset >= 0 and item.offset + count <= bucket.num_bytes
        assert not taken[item.offset : item.offset + count].any()
        taken[item.offset : item.offset + count] = True
        plain = plain and move.src_dtype == move.dst_dtype
        run.write(move, item.start, item.size, run.read(move, item.start, item.size))
    assert taken[0] and taken[-1]
    assert bucket.plain == plain


def _check_rounds(schedule: Buckets) -> None:
    """A round pairs every rank at most once."""
    for end in ("src", "dst"):
        seen = [(each.step, each.round, getattr(each, end)) for each in schedule.buckets]
        assert len(seen) == len(set(seen))
