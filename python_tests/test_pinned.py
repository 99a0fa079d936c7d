"""Results and plans are, to the last bit, those that are stored in pinned.json.

pinned_scenarios.py says what is called and how the digests were made.
"""

from __future__ import annotations

import json
from pathlib import Path

import pinned_plans
import pinned_scenarios as pinned
import pytest

_STORED = json.loads((Path(__file__).parent / "pinned.json").read_text())
_BUCKET_BYTES = [1 << 10, 64 << 10, 32 << 20]


@pytest.fixture(params=["loopback", "shm", "cma"])
def transport(request) -> str:
    return request.param


def compare(what: str, found: object, stored: object) -> None:
    assert found == stored, (
        f"{what} gives other bits than those stored in python_tests/pinned.json: {found}, stored "
        f"{stored}. Find what changed them; only where they are meant to change store new ones, as "
        "python_tests/pinned_scenarios.py says."
    )


@pytest.mark.parametrize("bucket_bytes", _BUCKET_BYTES)
@pytest.mark.parametrize("name", pinned.MOVES)
def test_reshard(name, bucket_bytes, transport):
    for rank, ways in enumerate(pinned.moved(name, transport, bucket_bytes)):
        for way, digest in ways.items():
            compare(f"{name}, {way}, rank {rank}", digest, _STORED["reshard"][name][rank])


@pytest.mark.parametrize("bucket_bytes", [1 << 10, 64 << 10, "auto"])
@pytest.mark.parametrize("world", pinned.WORLDS)
def test_collectives(world, bucket_bytes, transport):
    found = pinned.collected(world, transport, bucket_bytes)
    for rank, digests in enumerate(found):
        for call, digest in digests.items():
            stored = _STORED["collectives"][str(world)][rank][call]
            compare(f"{call}, rank {rank} of {world}", digest, stored)


@pytest.mark.parametrize("bucket_bytes", [1 << 10, "auto"])
@pytest.mark.parametrize("granularity", ["row", "element", "tensor"])
def test_masked_all_reduce(granularity, bucket_bytes, transport):
    found = pinned.masked_results(granularity, 3, transport, bucket_bytes)
    for rank, digests in enumerate(found):
        for op, digest in digests.items():
            stored = _STORED["masked"][granularity][rank][op]
            compare(f"{op} of {granularity}s, rank {rank}", digest, stored)


@pytest.mark.parametrize("name", pinned.UPDATES)
def test_two_step(name, transport):
    for rank, digests in enumerate(pinned.updated(name, transport)):
        compare(f"{name}, rank {rank}", digests, _STORED["two_step"][name][rank])


@pytest.mark.parametrize("name", cases := pinned_plans.plan_cases())
def test_plans(name):
    compare(f"the plan of {name}", cases[name](), _STORED["plans"][name])
