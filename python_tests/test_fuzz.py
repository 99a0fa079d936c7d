"""Saved bytes that are damaged where a digest cannot see it: only our errors may come out.

Each test runs a loop in a child, which has little memory and a time limit, and damages real blobs
under digests that fit. A child that dies leaves the bytes that killed it.

python python_tests/test_fuzz.py Plan 60 1 bytes.bin   # a longer run by hand, with another seed
"""

import mmap
import os
import random
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import blobs
import pytest

from hybridengine import InternalError, LayoutRule, Spec, UsageError, _core

SECONDS = 5
MEMORY_BYTES = 1 << 30  # more than everything that is imported here
LOAD_SECONDS = 2.0
RECORD_BYTES = 1 << 20  # of the file that outlives a child: the length of its last bytes, and they
SANITIZED = "san" in os.environ.get("LD_PRELOAD", "")

# Where blobs lie within a blob: how many texts come first, and how many blobs then follow.
NESTED = {"Spec": (0, 0), "Layout": (1, 1), "Plan": (0, 2), "Schedule": (0, 1)}
INNER = {"Layout": "Spec", "Plan": "Layout", "Schedule": "Plan"}
NUMBERS = [0, 1, 2, 3, 7, 8, 255, 2**16, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40]
NUMBERS += [2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2, 2**64 - 2**31]


def repaired(kind: str, blob: bytes) -> bytes:
    """The blob with digests that fit, those of the blobs within it first."""
    body = bytearray(blob[:-8])
    at = _skip(body, 0)  # magic
    at = -1 if at < 0 else at + 4  # version
    texts, inner = NESTED[kind]
    for _ in range(texts):
        at = _skip(body, at)
    for _ in range(inner):
        end = _skip(body, at)
        if end < 0:
            break
        body[at + 8 : end] = repaired(INNER[kind], bytes(body[at + 8 : end]))
        at = end
    return bytes(body) + blobs.digest(bytes(body))


def _skip(body: bytearray, at: int) -> int:
    """Where a text or blob that begins at `at` ends; -1 where it does not."""
    if at < 0 or at + 8 > len(body):
        return -1
    end = at + 8 + struct.unpack_from("<Q", body, at)[0]
    return end if end <= len(body) else -1


def damaged(rng: random.Random, blob: bytes, others: list[bytes]) -> bytes:
    changed = bytearray(blob)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at, length = rng.randrange(len(changed) + 1), rng.choice([1, 4, 8, rng.randrange(1, 80)])
        kind = rng.randrange(7)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind <= 2:
            size = rng.choice([1, 4, 8])
            number = rng.choice(NUMBERS) % 2 ** (8 * size)
            changed[at : at + size] = number.to_bytes(size, "little")
        elif kind == 3:
            del changed[at : at + length]
        elif kind == 4:
            changed[at:at] = rng.randbytes(length)
        elif kind == 5:
            begin = rng.randrange(len(blob))
            changed[at : at + length] = blob[begin : begin + length]
        else:
            other = rng.choice(others)
            begin = rng.randrange(len(other))
            changed[at : at + length] = other[begin : begin + length]
    return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.05 else changed)


def samples(kind: str) -> list[bytes]:
    rows = [("a.0.w", (6, 4), "float32"), ("a.1.w", (), "int8"), ("b", (0, 3), "float64")]
    spec = Spec(_core.Spec([*rows, ("c", (2, 1, 3, 2, 1, 2), "float16")], [("d", "c")]))
    plain = Spec.from_tensors(rows[:1])
    if kind == "Spec":
        return [spec.core.save(), plain.core.save()]

    def bind(text: str, model: Spec) -> _core.Layout:
        return LayoutRule.parse(text).bind(model).core

    by_hand = _core.Layout(
        "by hand",
        plain.core,
        [0, 3],
        [(0, "x", (40,), "float32"), (3, "y", (4, 6), "float32")],
        [
            ("a.0.w", 0, "x", (0, 0), (3, 4), 2, (9, 1)),
            ("a.0.w", 0, "x", (3, 0), (3, 2), 6, (9, 1)),
            ("a.0.w", 3, "y", (0, 0), (6, 4), 0, (1, 6)),
        ],
    )
    pairs = [
        (bind("fsdp2(2,replicas=2)", spec), bind("fsdp2(3)@1-3", spec)),
        (by_hand, bind("replicated(2)", plain.with_dtype("bfloat16"))),
        (bind("partial(mean, replicated(3))", plain), bind("replicated(2)", plain)),
    ]
    if kind == "Layout":
        return [layout.save() for pair in pairs for layout in pair]
    plans = [_core.make_plan(*pair) for pair in pairs]
    if kind == "Plan":
        return [plan.save() for plan in plans]
    return [_core.make_schedule(p, 1, size).save() for p in plans for size in (16, 2**25)]


def use(kind: str, loaded) -> None:
    """What was accepted must be fit for use."""
    assert type(loaded).load(loaded.save()) == loaded
    loaded.digest()
    if kind == "Spec":
        str(loaded)
        loaded.with_dtype("bfloat16")
        return
    if kind == "Layout":
        for rank in loaded.ranks:
            loaded.to_string(rank)
            loaded.padded(rank)
            loaded.num_bytes(rank)
        if loaded.op != "copy":
            return  # a source only, and nothing here has its spec
        loaded = _core.make_plan(loaded, loaded)
    if kind in ("Layout", "Plan"):
        str(loaded)
        rank = loaded.certificate.ranks[0]["rank"]
        _core.pairs_of(loaded, 2**62)
        loaded = _core.make_schedule(loaded, rank, 2**62)
        loaded.check()
    str(loaded)


def run(kind: str, seconds: float, seed: int, path: Path) -> str:
    """Damages and loads for that long, of its own processor time. What it does is the same for the
    same seed."""
    load = getattr(_core, kind).load
    originals = samples(kind)
    assert all(repaired(kind, blob) == blob for blob in originals)
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    path.write_bytes(bytes(RECORD_BYTES))
    with path.open("r+b") as file:
        record = mmap.mmap(file.fileno(), RECORD_BYTES)
    rng = random.Random(seed)
    accepted = refused = 0
    deadline = time.process_time() + seconds
    while time.process_time() < deadline:
        blob = repaired(kind, damaged(rng, rng.choice(originals), originals))
        record[: len(blob) + 8] = struct.pack("<Q", len(blob)) + blob
        began = time.process_time()
        try:
            loaded = load(blob)
        except (UsageError, InternalError):
            refused += 1
        else:
            use(kind, loaded)
            accepted += 1
        taken = time.process_time() - began
        assert taken < LOAD_SECONDS, f"{len(blob)} bytes took {taken:.1f} s"
    return f"{accepted} accepted, {refused} refused"


def last_bytes(path: Path) -> bytes:
    record = path.read_bytes()
    return record[8 : 8 + struct.unpack_from("<Q", record)[0]]


@pytest.fixture(scope="module")
def children(tmp_path_factory) -> Iterator[dict[str, tuple[subprocess.Popen[str], int, Path]]]:
    """One for each kind, side by side: each has a processor's time of its own."""
    found = {}
    for kind in NESTED:
        path, seed = tmp_path_factory.mktemp(kind) / "bytes.bin", random.randrange(10**6)
        child = subprocess.Popen(
            [sys.executable, __file__, kind, str(SECONDS), str(seed), str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        found[kind] = child, seed, path
    yield found
    for child, _, _ in found.values():
        child.kill()
        child.communicate()


@pytest.mark.parametrize("kind", NESTED)
def test_damaged_bytes_are_refused_or_fit_for_use(kind, children):
    child, seed, path = children[kind]
    said, errors = child.communicate(timeout=SECONDS * 20)
    assert child.returncode == 0, f"seed {seed}, {last_bytes(path).hex()}: {errors}"
    accepted, refused = (int(part.split()[0]) for part in said.split(","))
    assert accepted > 0 and refused > 0, said


@pytest.mark.parametrize("kind", NESTED)
def test_every_prefix_is_refused(kind):
    load = getattr(_core, kind).load
    blob = samples(kind)[0]
    for length in range(len(blob)):
        with pytest.raises(UsageError):
            load(blob[:length])
    for length in range(len(blob) - 8):
        with pytest.raises(UsageError):
            load(blob[:length] + blobs.digest(blob[:length]))


@pytest.mark.parametrize("kind", NESTED)
def test_an_unrepaired_digest_is_seen(kind):
    load = getattr(_core, kind).load
    blob = samples(kind)[0]
    for at in range(0, len(blob), 3):
        changed = bytearray(blob)
        changed[at] ^= 0x10
        with pytest.raises(UsageError, match="damaged"):
            load(bytes(changed))


@pytest.mark.parametrize("kind", NESTED)
def test_other_kinds_and_versions_are_named(kind):
    load = getattr(_core, kind).load
    for other in NESTED:
        if other != kind:
            with pytest.raises(UsageError, match="something else"):
                load(samples(other)[0])
    blob = bytearray(samples(kind)[0])
    known = blobs.VERSIONS[kind.lower()]
    blob[8 + struct.unpack_from("<Q", blob)[0]] += 1
    with pytest.raises(UsageError, match=f"version {known + 1}, this build reads {known}"):
        load(repaired(kind, bytes(blob)))


if __name__ == "__main__":
    kind, seconds, seed, path = sys.argv[1:]
    print(run(kind, float(seconds), int(seed), Path(path)))
