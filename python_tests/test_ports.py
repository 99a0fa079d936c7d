"""B18: ranks that start at the same moment on one host do not take each other's ports, and a port
that is given but taken is named with its setting."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

pytestmark = [pytest.mark.python, pytest.mark.slow]

_POOL = """
from hybridengine.rlhf.config import schema
from hybridengine.rlhf.workers import Cluster, Pool
with Cluster.start(schema.Cluster(), num_cpus=1) as cluster:
    print(Pool.create(cluster, "train", 1).num_ranks)
"""
_LOCAL = """
import launch_scenarios
from hybridengine.launch import run_local
if __name__ == "__main__":
    for _ in range(5):
        print(run_local(2, launch_scenarios.add_ranks, 1))
"""
_MEET = """
import time
from hybridengine._bench.world import run_on_ranks
from hybridengine._core import TransportError
began = time.monotonic()
try:
    print(run_on_ranks(1, None, "auto", None, print, lambda world: world.size))
except TransportError as error:
    print(f"{time.monotonic() - began:.1f} {error}")
"""


def _started(code: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | env,
    )


def _said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which another program listens and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.soak
def test_pools_that_start_at_the_same_moment_again_and_again(pytestconfig: pytest.Config) -> None:
    for _ in range(24 if pytestconfig.getoption("--full") else 1):
        test_two_pools_that_start_at_the_same_moment()


def test_two_pools_that_start_at_the_same_moment() -> None:
    """Each with a Ray and a meeting place of its own."""
    both = [_started(_POOL) for _ in range(2)]
    assert [_said(process) for process in both] == ["1\n", "1\n"]


def test_launches_at_the_same_moment() -> None:
    both = [_started(_LOCAL) for _ in range(2)]
    assert [_said(process) for process in both] == ["[[1, 2], [1, 2]]\n" * 5] * 2


def test_a_port_that_is_taken_is_named_with_its_setting(taken: int) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken)}
    seconds, _, words = _said(_started(_MEET, RANK="0", WORLD_SIZE="1", **place)).partition(" ")
    assert words == (
        f"rank 0 cannot listen at 127.0.0.1:{taken}, as MASTER_ADDR and MASTER_PORT say: another "
        "program does. Set MASTER_PORT (torchrun: --master-port) to a free port.\n"
    )
    assert float(seconds) < 2


def test_a_port_is_free_again_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for _ in range(2):
        assert _said(_started(_MEET, RANK="0", WORLD_SIZE="1", **place)) == "1\n"


def test_an_address_at_which_another_program_listens(taken: int) -> None:
    """Ray itself would try for minutes."""
    from hybridengine import UsageError
    from hybridengine.rlhf.config import schema
    from hybridengine.rlhf.workers import Cluster

    began = time.monotonic()
    with pytest.raises(UsageError, match=rf"cluster.address='127.0.0.1:{taken}': no Ray cluster"):
        Cluster.start(schema.Cluster(address=f"127.0.0.1:{taken}"))
    assert time.monotonic() - began < 10
